"""Commands that measure: the whole survey, its stages, the heads of a model, and what a survey would cost."""

from pathlib import Path
from typing import Annotated

import typer

from theodolite_jobs.commands.options import (
    AsJson,
    Dask,
    Gpus,
    ModelId,
    Ray,
    Replicas,
    Revision,
    RunId,
    SpecPath,
    Store,
    print_outcome,
    print_value,
    run_of,
    settings_of,
    spec_of,
)


def survey(
    spec: SpecPath,
    store: Store = None,
    ray: Ray = None,
    dask: Dask = None,
    replicas: Replicas = None,
    gpus_per_replica: Gpus = None,
    as_json: AsJson = False,
) -> None:
    """Capture, analyse and report; go on where a former try stopped.

    For example: theodolite survey demo.yaml --store ./theodolite-store
    """
    from theodolite_jobs.metrics_server import served
    from theodolite_jobs.progress import Console
    from theodolite_jobs.survey import survey as run_survey

    settings = settings_of(
        store=store, ray_address=ray, dask_address=dask, replicas=replicas, gpus_per_replica=gpus_per_replica
    )
    asked = spec_of(spec)
    with served(settings):
        run = run_survey(asked, spec.parent, settings, Console())
    print_outcome(run, as_json)


def capture(
    spec: SpecPath,
    store: Store = None,
    ray: Ray = None,
    replicas: Replicas = None,
    gpus_per_replica: Gpus = None,
    as_json: AsJson = False,
) -> None:
    """Capture activations only; `analyse` computes the statistics later."""
    from theodolite_jobs.metrics_server import served
    from theodolite_jobs.progress import Console
    from theodolite_jobs.survey import capture as run_capture

    settings = settings_of(store=store, ray_address=ray, replicas=replicas, gpus_per_replica=gpus_per_replica)
    asked = spec_of(spec)
    with served(settings):
        run = run_capture(asked, spec.parent, settings, Console())
    print_outcome(run, as_json)


def analyse(run: RunId, store: Store = None, dask: Dask = None, as_json: AsJson = False) -> None:
    """Compute what is missing of a captured run's results, and its report."""
    from theodolite.query.runs import last_asked
    from theodolite_jobs.analysis import analyse_run
    from theodolite_jobs.metrics_server import served
    from theodolite_jobs.progress import Console

    settings = settings_of(store=store, dask_address=dask)
    opened = run_of(run, settings)
    with served(settings):
        analyse_run(opened, last_asked(opened), None, settings, Console())
    print_outcome(opened, as_json)


def report(run: RunId, store: Store = None, as_json: AsJson = False) -> None:
    """Write the report of an analysed run again."""
    from theodolite_jobs.report.page import write_report

    opened = run_of(run, settings_of(store=store))
    write_report(opened)
    print_outcome(opened, as_json)


def heads(
    model: ModelId,
    store: Store = None,
    offsets: Annotated[
        str, typer.Option(help="Query position minus key position, several with commas; for rotary positions.")
    ] = "0",
    fold_norm: Annotated[bool, typer.Option("--fold-norm", help="Fold the norm before attention into it.")] = False,
    vectors: Annotated[int, typer.Option(min=0, help="Singular vectors to keep; 0 for the values alone.")] = 20,
    words: Annotated[bool, typer.Option("--words/--no-words", help="Say the vectors in tokens too.")] = True,
    composition: Annotated[
        str | None, typer.Option(metavar="FIRST:LAST", help="Layers whose heads are compared in pairs.")
    ] = None,
    revision: Revision = None,
    dask: Dask = None,
    as_json: AsJson = False,
) -> None:
    """Decompose every attention head's QK and VO circuit from the weight files: no prompts, no GPU, no model loaded.

    For example: theodolite heads smollm2-135m-instruct --offsets 0,1,8
    """
    from theodolite.spec_file import parse_spec
    from theodolite_jobs.metrics_server import served
    from theodolite_jobs.progress import Console
    from theodolite_jobs.survey import survey as run_survey

    asked = parse_spec(
        {
            "model": {"id": model, "revision": revision},
            "prompts": {},
            "analyses": None if words else ["heads"],
            "heads": {
                "offsets": offsets.split(","),
                "fold_norm": fold_norm,
                "vectors": vectors,
                "composition": composition.split(":") if composition else None,
            },
        },
        "the command",
    )
    settings = settings_of(store=store, dask_address=dask)
    with served(settings):
        run = run_survey(asked, Path(), settings, Console())
    print_outcome(run, as_json)


def plan(spec: SpecPath, store: Store = None, as_json: AsJson = False) -> None:
    """Say what a survey would cost: prompts, tokens, shards, batches, memory, bytes. Loads no weights."""
    from theodolite_jobs.estimate import plan_survey

    print_value(plan_survey(spec_of(spec), spec.parent, settings_of(store=store)), as_json)
