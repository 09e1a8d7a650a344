"""Measure and check on one GPU what a machine without one cannot, in less than nine minutes.

Each step is a command with a time limit. It writes a log and, except for the tests, a JSON of its own; `summary.json`
has the outcome and the seconds of each. So a cut loses only the step that runs. They are in the order of their worth:

- `capture-7b`: speed of capture with the automatic plan, with and without fused norms, and with writing
- `survey`: a complete survey on the GPU, compared with the CPU's; two drivers on one GPU, one of which is killed
- `capture-32b`: as for 7B
- `tests`: the tests marked `gpu`
- `families`: a tiny model of every family that no stored result has, against the CPU
- `words`: the products with a large vocabulary, against the CPU

`--simulate` runs all steps on a CPU at a small size. pack_gpu.py packs what the machine lacks.
Usage: python benchmarks/gpu_run.py --help
"""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import measuring
import psutil

BENCHMARKS = Path(__file__).resolve().parent
ROOT = BENCHMARKS.parent
SMALL_SURVEY = """
model: {id: smollm2-135m-instruct}
prompts:
  harmful: {source: "builtin:harmful", limit: 16}
  harmless: {source: "builtin:harmless", limit: 16}
contrasts: {refusal: {positive: harmful, negative: harmless, paired: true}}
analyses: [curves, separation]
"""


@dataclass(frozen=True)
class Step:
    """A script with its arguments on a GPU and, to try it, on a CPU; and the seconds after which it is stopped."""

    seconds: int
    script: str
    on_gpu: str
    on_cpu: str


TINY = "--tiny --prompts 16 --repeats 1"
TESTS = "-q -m gpu -W default -p no:cacheprovider tests/jobs/results/test_devices.py tests/jobs/capture/test_fused.py"
STEPS = {
    "capture-7b": Step(110, "capture_gpu.py", "--shapes 7b --plans auto --prompts 8192 --repeats 1", TINY),
    "survey": Step(200, "survey_gpu.py", "--folder {folder}/stores", "--device cpu --spec {folder}/small.yaml"),
    "capture-32b": Step(130, "capture_gpu.py", "--shapes 32b --plans auto --prompts 2048 --repeats 1", TINY),
    "tests": Step(30, "-m pytest", TESTS, TESTS),
    "families": Step(80, "families_gpu.py", "--processes 14 --only {families}", "--device cpu --only llama,t5"),
    "words": Step(40, "words_gpu.py", "", "--device cpu --vocabulary 500 --nouns 4"),
}


def main() -> None:
    options = measuring.read_options(
        "Run all measurements and checks that need a GPU; write the results into a folder.",
        only=([*STEPS], "steps to run"),
        folder=("gpu-run", "folder of the logs and results"),
        simulate=(False, "try the steps on a CPU at a small size"),
        minutes=(9.0, "time of all steps together; a step gets what is left"),
    )
    folder = Path(options.folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "small.yaml").write_text(SMALL_SURVEY)
    deadline, summary = time.monotonic() + 60 * options.minutes, {}
    for name in options.only:
        left = deadline - time.monotonic()
        limit = 600.0 if options.simulate else min(left, STEPS[name].seconds)
        started = time.monotonic()
        outcome = run(STEPS[name], folder, name, limit, options.simulate) if limit > 0 else "no time was left"
        summary[name] = {"outcome": outcome, "seconds": round(time.monotonic() - started, 1)}
        measuring.say(f"{name}: {outcome}, {summary[name]['seconds']} s")
        (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(json.dumps(summary))
    sys.exit(any(step["outcome"] != "ok" for step in summary.values()))


def run(step: Step, folder: Path, name: str, limit: float, is_simulated: bool) -> str:
    """Run a step with its log and result in the folder; return `ok`, its exit status, or that it was stopped."""
    arguments = (step.on_cpu if is_simulated else step.on_gpu).format(folder=folder, families=missing_families())
    script = step.script.split() if step.script.startswith("-m") else [str(BENCHMARKS / step.script)]
    out = [] if step.script.startswith("-m") else ["--out", str(folder / f"{name}.json")]
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *script, *arguments.split(), *out],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            for descendant in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):  # surveys have sessions of their own
                    descendant.kill()
            process.kill()
            process.wait()
            return f"stopped after {limit:.0f} s"
    return "ok" if status == 0 else f"exit status {status}"


def missing_families() -> str:
    """Return the families that were surveyed on a CPU and have no result from a GPU, with commas between them."""
    on_cpu, on_gpu = (
        {
            name
            for path in (BENCHMARKS / "results").glob(pattern)
            for name, found in json.loads(path.read_text())["families"].items()
            if "known_by" in found
        }
        for pattern in ("families_*.json", "gpu-families_*.json")
    )
    return ",".join(sorted(on_cpu - on_gpu) or sorted(on_cpu))


if __name__ == "__main__":
    main()
