"""Commands that run a survey, one of its stages or the analysis of heads, or estimate the cost of a survey."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from theodolite_jobs.commands.options import (
    Analyses,
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
    analyses: Analyses = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="If the run exists, first compare all of its objects with their checksums."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Capture activations, compute statistics and write the report.

    If a survey was interrupted, run the same command again: it captures only the shards that are not stored yet.

    For example: theodolite survey demo.yaml --store ./theodolite-store
    """
    parsed = spec_of(spec, analyses)  # before an import that takes a second
    from theodolite_jobs.survey import survey as run_survey

    cluster = {"ray_address": ray, "dask_address": dask, "replicas": replicas, "gpus_per_replica": gpus_per_replica}
    _run(partial(run_survey, verified=verify), parsed, spec.parent, as_json, store=store, **cluster)


def capture(
    spec: SpecPath,
    store: Store = None,
    ray: Ray = None,
    replicas: Replicas = None,
    gpus_per_replica: Gpus = None,
    as_json: AsJson = False,
) -> None:
    """Capture activations, without statistics. `theodolite run analyse` computes the statistics later.

    For example: theodolite capture demo.yaml --store ./theodolite-store
    """
    parsed = spec_of(spec)
    from theodolite_jobs.survey import capture as run_capture

    cluster = {"ray_address": ray, "replicas": replicas, "gpus_per_replica": gpus_per_replica}
    _run(run_capture, parsed, spec.parent, as_json, store=store, **cluster)


def analyse(run: RunId, store: Store = None, dask: Dask = None, as_json: AsJson = False) -> None:
    """Compute the missing and outdated results of a captured run, and write its report.

    For example: theodolite run analyse RUN --store ./theodolite-store
    """
    settings = settings_of(store=store, dask_address=dask)
    opened = run_of(run, settings)
    from theodolite_jobs.metrics_server import served
    from theodolite_jobs.progress import Console
    from theodolite_jobs.survey import analyse as analyse_run

    with served(settings):
        analyse_run(opened, settings, Console())
    print_outcome(opened, as_json)


def report(run: RunId, store: Store = None, as_json: AsJson = False) -> None:
    """Write the report of an analysed run again.

    For example: theodolite run report RUN --store ./theodolite-store
    """
    from theodolite_jobs.report.page import write_report

    opened = run_of(run, settings_of(store=store))
    write_report(opened)
    print_outcome(opened, as_json)


def heads(
    model: ModelId,
    store: Store = None,
    offsets: Annotated[
        str,
        typer.Option(
            help="Offsets (query position minus key position) for W_QK of models with rotary positions, separated by "
            "commas. 0 is always included."
        ),
    ] = "0",
    fold_norm: Annotated[
        bool, typer.Option("--fold-norm", help="Fold the norm that precedes attention into the attention weights.")
    ] = False,
    vectors: Annotated[
        int,
        typer.Option(
            min=0,
            help="Number of leading singular vectors to store for each circuit. 0 stores none, and computes no copying "
            "scores and no vocabulary tokens.",
        ),
    ] = 20,
    words: Annotated[
        bool,
        typer.Option(
            "--words/--no-words",
            help="Also compute `sphere`, `weights` and `words` (which decodes the singular vectors into tokens).",
        ),
    ] = True,
    composition: Annotated[
        str | None,
        typer.Option(
            metavar="FIRST:LAST",
            help="Also compute composition scores for pairs of heads in different layers, from FIRST to LAST: "
            "‖W_OV W‖/(‖W_OV‖‖W‖) with W_OV of the earlier head. For Q-, K- and V-composition, W is W_QK, W_QKᵀ and "
            "W_OV of the later head, in this order.",
        ),
    ] = None,
    revision: Revision = None,
    dask: Dask = None,
    as_json: AsJson = False,
) -> None:
    """Decompose the QK and OV circuits of all attention heads. The command needs no prompts and no GPU.

    For example: theodolite heads smollm2-135m-instruct --offsets 0,1,8
    """
    from theodolite_jobs.python import heads_spec
    from theodolite_jobs.survey import survey as run_survey

    pair = composition.split(":") if composition else None
    parsed = heads_spec(model, revision, offsets.split(","), fold_norm, vectors, words, pair)
    _run(run_survey, parsed, Path(), as_json, store=store, dask_address=dask)


def _run(stages: Callable[..., Any], spec: Any, folder: Path, as_json: bool, **options: Any) -> None:
    """Run the stages of a survey with the settings of some options, and print the outcome."""
    from theodolite_jobs.python import run_stages

    print_outcome(run_stages(stages, spec, folder, settings_of(**options)), as_json)


def plan(spec: SpecPath, store: Store = None, analyses: Analyses = None, as_json: AsJson = False) -> None:
    """Count the prompts, tokens, shards and batches of a survey, and estimate its memory, bytes and time.

    A table at the end has the time and the bytes of the capture and of each analysis. The command loads no weights. It
    also prints the last tokens of the first prompt of each set, those at named positions of its first prompts, and a
    whole prompt, and marks the captured tokens.

    For example: theodolite plan survey.yaml
    """
    parsed = spec_of(spec, analyses)
    from theodolite_jobs.python import planned

    found = planned(parsed, spec.parent, settings_of(store=store))
    if as_json:
        print_value(found, as_json)
        return
    from theodolite_jobs.commands.plan_text import plan_text

    print(plan_text(found))
