"""Run a complete survey on one GPU and the same survey on the CPU of its machine, through Ray, and compare them.

Both run at the same time, as commands of their own. `groups` has for each analysis the number of its arrays, the
largest difference of one (relative to its largest value; NaN at other places counts as 1), and the array's name.
`far` lists the arrays that differ by more than 1e-3, such as p values by permutation and ranks, where a rounding moves
a whole step. `tables` has the share of rows that are equal, where numbers may differ by 1e-3 of the column's largest.

Then two drivers, each with a replica on the GPU, share another survey, and one is killed while it captures. `shared`
has the seconds, whether one was killed, and the arrays that differ from those of one driver that captured all.

The last line is one JSON object.
Usage: python benchmarks/survey_gpu.py --help
"""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import measuring  # first: it prepares the process before torch is imported
import numpy as np
import pandas as pd
import zarr
from fastparquet import ParquetFile

ROOT = Path(__file__).resolve().parents[1]
CLOSE = 1e-3

SHARED = """
model: {id: smollm2-135m-instruct}
prompts: {harmful: {source: "builtin:harmful"}, harmless: {source: "builtin:harmless"}}
capture: {batch_tokens: 256, shard_prompts: 8}  # so many that the survey is still captured when a driver is killed
contrasts: {refusal: {positive: harmful, negative: harmless, paired: true}}
analyses: [curves, separation]
"""


def main() -> None:
    options = measuring.read_options(
        "Compare a complete survey on a GPU with the same survey on the CPU; print JSON.",
        spec=(str(ROOT / "jobs/theodolite_jobs/specs/demo.yaml"), "the survey"),
        folder=(None, "folder for both stores and logs; without it, they are removed"),
        device=("cuda", "the device to compare; cpu tries the code"),
    )
    if (device := measuring.device_or_hint(options.device, "--device cpu")) is None:
        return
    with TemporaryDirectory(prefix="theodolite-survey-") as temporary, ThreadPoolExecutor(2) as threads:
        folder = Path(options.folder or temporary)
        gpus = {"gpu": int(device.type == "cuda"), "cpu": 0}
        surveys = {name: threads.submit(survey, options.spec, folder, name, n) for name, n in gpus.items()}
        results = {name: future.result() for name, future in surveys.items()}
        runs = [next((folder / name / "runs").iterdir()) for name in gpus]
        compared = compare_results(*(run / "results.zarr" for run in runs))
        result = {"surveys": results, **compared, "tables": compare_tables(*(run / "tables" for run in runs))}
        if options.out:  # a cut of what follows loses nothing
            Path(options.out).write_text(json.dumps(result))
        result["shared"] = share_and_kill(folder, gpus["gpu"])
    measuring.publish(result, options.out, device)


def survey(spec: str, folder: Path, name: str, gpus: int, is_killed: bool = False, log: str = "") -> dict[str, Any]:
    """Run a survey with its store and log in a folder; return the seconds, and what the command printed as JSON.

    Args:
        spec: path of the spec.
        folder: folder of the store and the log.
        name: name of the store.
        gpus: GPUs of the replica.
        is_killed: kill the driver as soon as it captures; the seconds are returned, and whether it was killed.
        log: name of the log, if it is not that of the store.
    """
    folder.mkdir(parents=True, exist_ok=True)
    program = "import sys; from theodolite_jobs.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "survey", spec, "--store", str(folder / name), "--json"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "THEODOLITE_GPUS_PER_REPLICA": str(gpus)}
    if not gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    started, last = time.perf_counter(), ""
    with (folder / f"{log or name}.log").open("w") as file:
        done = subprocess.Popen(
            command,
            env=environment,
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert done.stdout is not None
        for last in done.stdout:
            line = f"{time.perf_counter() - started:6.1f} {last}"
            file.write(line)
            file.flush()
            measuring.say(f"{log or name} {line[:200].rstrip()}")
            if is_killed and "capture:" in last:
                os.killpg(done.pid, signal.SIGKILL)
                break
    facts: dict[str, Any] = {"seconds": round(time.perf_counter() - started, 1)}
    status = done.wait()
    if is_killed:
        return facts | {"killed": status == -signal.SIGKILL}
    if status:
        raise SystemExit(f"the survey on the {name} failed: {last}")
    return facts | json.loads(last)


def share_and_kill(folder: Path, gpus: int) -> dict[str, Any]:
    """Let two drivers share a survey and kill one; return the seconds of both, and the arrays that differ."""
    spec = folder / "shared.yaml"
    spec.write_text(SHARED)
    alone = survey(str(spec), folder, "alone", gpus)
    with ThreadPoolExecutor(2) as threads:
        killed = threads.submit(survey, str(spec), folder, "shared", gpus, True, "killed")
        survivor = threads.submit(survey, str(spec), folder, "shared", gpus, False, "survivor")
        facts = {"killed": killed.result()["killed"], "survivor_seconds": survivor.result()["seconds"]}
    runs = [next((folder / name / "runs").iterdir()) for name in ("alone", "shared")]
    left, right = (arrays_of(zarr.open_group(run / "results.zarr", mode="r")) for run in runs)
    differ = [name for name in left.keys() | right.keys() if not same_bits(left.get(name), right.get(name))]
    return {"alone_seconds": alone["seconds"], **facts, "arrays": len(left), "arrays_that_differ": sorted(differ)}


def same_bits(ours: np.ndarray | None, theirs: np.ndarray | None) -> bool:
    """Return whether both arrays exist and are equal, bit for bit."""
    if ours is None or theirs is None or ours.dtype != theirs.dtype:
        return False
    return ours.tolist() == theirs.tolist() if ours.dtype.kind not in "fiub" else ours.tobytes() == theirs.tobytes()


def arrays_of(group: zarr.Group, prefix: str = "") -> dict[str, Any]:
    """Return all arrays below a group, by their path."""
    arrays = {prefix + name: array[...] for name, array in group.arrays()}
    for name, below in group.groups():
        arrays |= arrays_of(below, f"{prefix}{name}/")
    return arrays


def compare_results(ours: Path, theirs: Path) -> dict[str, Any]:
    """Return the differences of two runs' results."""
    left, right = (arrays_of(zarr.open_group(path, mode="r")) for path in (ours, theirs))
    differences = {name: difference(left[name], right[name]) for name in left.keys() & right.keys()}
    groups = {}
    for group in sorted({name.split("/")[0] for name in differences}):
        own = {name: value for name, value in differences.items() if name.split("/")[0] == group}
        worst = max(own, key=lambda name: own[name])
        groups[group] = {"arrays": len(own), "largest_difference": own[worst], "array": worst}
    return {
        "groups": groups,
        "far": {name: value for name, value in sorted(differences.items()) if value > CLOSE},
        "only_in_one": sorted(left.keys() ^ right.keys()),
    }


def difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the largest difference of two arrays, relative to the largest value; 1 if they cannot be compared."""
    if ours.shape != theirs.shape:
        return 1.0
    if ours.dtype.kind not in "fiu":
        return float(np.mean(ours != theirs)) if ours.size else 0.0
    ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    finite = np.isfinite(theirs)
    if not (np.isfinite(ours) == finite).all():
        return 1.0
    if not finite.any():
        return 0.0
    scale = np.abs(theirs[finite]).max()
    return float(np.abs(ours[finite] - theirs[finite]).max() / (scale or 1.0))


def compare_tables(ours: Path, theirs: Path) -> dict[str, dict[str, Any]]:
    """Return the share of equal rows of each table; 0 if only one of the runs has it."""
    names = [{str(path.relative_to(folder)) for path in folder.rglob("*.parquet")} for folder in (ours, theirs)]
    shares = {name: {"rows": 0, "equal": 0.0} for name in sorted(names[0] ^ names[1])}
    for name in sorted(names[0] & names[1]):
        left, right = (ParquetFile(str(folder / name)).to_pandas() for folder in (ours, theirs))
        same = len(left) == len(right) and np.logical_and.reduce(
            [equal_rows(left[column], right[column]) for column in right.columns]
        )
        shares[name] = {"rows": len(right), "equal": float(np.mean(same))}
    return shares


def equal_rows(ours: pd.Series, theirs: pd.Series) -> np.ndarray:
    """Return which entries of a column are equal; numbers within CLOSE of its largest."""
    if theirs.dtype.kind == "f":
        scale = float(np.nanmax(np.abs(theirs))) if theirs.notna().any() else 1.0
        return np.isclose(ours, theirs, rtol=0, atol=CLOSE * (scale or 1.0), equal_nan=True)
    return (ours.astype(str) == theirs.astype(str)).to_numpy()


if __name__ == "__main__":
    main()
