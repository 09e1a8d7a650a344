"""Measure the processor time of each analysis of a survey, from which `theodolite plan` estimates those of others.

The survey is that of a spec, by default the built-in demo, in a temporary store. `seconds` are those of this process
for each analysis, without the forward passes of `effects`, which replicas run; `passes` are those of the passes over
the activations that several analyses share: the first of `moments` and `curves`, the second of `sphere` and `travel`.

The last line is one JSON object. Usage: python benchmarks/analyses.py --help
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import measuring  # first: it prepares the process before torch is imported

from theodolite.settings import Settings
from theodolite.spec_file import read_spec
from theodolite_jobs import analysis
from theodolite_jobs.progress import Console
from theodolite_jobs.results import context
from theodolite_jobs.survey import survey

DEMO = Path(__file__).parents[1] / "jobs/theodolite_jobs/specs/demo.yaml"


class Clock:
    """The processor time of functions, without that of the passes that run inside them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.passes: list[float] = []

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, whose time is added under a name."""

        def run(*arguments: Any) -> Any:
            before, start = sum(self.passes), time.process_time()
            found = function(*arguments)
            spent = time.process_time() - start - (sum(self.passes) - before)
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
            return found

        return run

    def timed_passes(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that passes over the activations, whose times are listed."""

        def run(*arguments: Any) -> Any:
            start = time.process_time()
            found = function(*arguments)
            self.passes.append(time.process_time() - start)
            return found

        return run


def main() -> None:
    options = measuring.read_options(
        "Measure the processor time of the analyses of a survey; print JSON.", spec=(str(DEMO), "spec file")
    )
    clock, known = Clock(), analysis.computation

    def computation(name: str) -> Any:
        module = known(name)
        return SimpleNamespace(digest_inputs=module.digest_inputs, compute=clock.timed(name, module.compute))

    path = Path(options.spec)
    with (
        tempfile.TemporaryDirectory(prefix="theodolite-analyses-") as store,
        patch.object(analysis, "computation", computation),
        patch.object(context, "collect", clock.timed_passes(context.collect)),
    ):
        run = survey(read_spec(path), path.parent, Settings(store=store), Console())
        sizes = run.record.model.model_dump(include={"name", "n_layers", "d_model", "n_heads", "d_head"})
        prompts = {name: facts.n_samples for name, facts in run.record.sets.items()}
    shape = {**sizes, "prompts": prompts, "seconds": clock.seconds, "passes": clock.passes}
    measuring.publish({"shapes": {path.stem: shape}}, options.out)


if __name__ == "__main__":
    main()
