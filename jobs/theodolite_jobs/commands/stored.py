"""Commands about what a store has: runs, whether they are whole, comparisons, directions to take away."""

import json
from pathlib import Path
from typing import Annotated

import typer

from theodolite_jobs.commands.options import AsJson, RunId, Store, print_value, run_of, settings_of


def runs(store: Store = None, as_json: AsJson = False) -> None:
    """List the runs of a store, newest first."""
    from theodolite.query.runs import summaries

    found = summaries(settings_of(store=store).store)
    if as_json:
        print(json.dumps({"items": found}))
        return
    if not found:
        typer.echo(f"no runs in {settings_of(store=store).store} yet; make one with: theodolite survey SPEC", err=True)
    for item in found:
        sets = ", ".join(f"{name} {size}" for name, size in item["sets"].items())
        print(f"{item['run_id']}  {item['state']}  {item.get('reason', sets or 'no prompts')}  {item['created'][:16]}")


def show(run: RunId, store: Store = None, as_json: AsJson = False) -> None:
    """Show what is known of a run: model, prompts, parity, progress, results."""
    from theodolite.query.runs import describe

    known = describe(run_of(run, settings_of(store=store)))
    if not as_json:  # dimensions and the spec are for programs
        known["results"] = {name: ", ".join(found) or "tables" for name, found in known["results"].items()}
        known["tables"] = ", ".join(known["tables"])
        del known["spec"]
        if known["state"] != "complete":
            del known["report"]  # which is not written yet
    print_value(known, as_json)


def verify(run: RunId, store: Store = None, as_json: AsJson = False) -> None:
    """Check every stored byte of a run against what was committed; exit 1 and name what is missing or damaged."""
    from theodolite.query.runs import verify as find_damages

    opened = run_of(run, settings_of(store=store))
    found = list(find_damages(opened))
    if as_json:
        print(json.dumps({"run_id": opened.id, "whole": not found, "damages": found}))
    else:
        print("\n".join(found) or f"{opened.id} is whole")
    if found:
        raise typer.Exit(1)


def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help="Run ids, as `theodolite runs` lists them.")],
    statistic: Annotated[
        str, typer.Option(metavar="NAME", help="Any statistic along depth, such as auroc or variance_mean.")
    ] = "cosine_of_means_debiased",
    contrast: Annotated[str | None, typer.Option(help="Which contrast; needed where a run has several.")] = None,
    prompt_set: Annotated[
        str | None, typer.Option("--set", help="Which prompt set, for a statistic of one such as variance_mean.")
    ] = None,
    site: Annotated[str | None, typer.Option(help="One site; by default resid_pre and resid_mid.")] = None,
    position: Annotated[int | None, typer.Option(help="Token position; by default each run's last.")] = None,
    bound: Annotated[
        float,
        typer.Option(
            min=0.5,
            max=1,
            help="AUROC that the lower end of the interval must reach for the sets to count as separated.",
        ),
    ] = 0.95,
    output: Annotated[Path, typer.Option(help="Where the page is written.")] = Path("comparison.html"),
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Draw a statistic of several runs on relative depth, and say where their sets' cosine is least and they separate.

    For example: theodolite compare RUN RUN --statistic auroc
    """
    from theodolite.query.compare import Question, milestones, records
    from theodolite_jobs.report.comparison import said, write_comparison

    opened = [run_of(run, settings_of(store=store)) for run in dict.fromkeys(runs)]
    question = Question(statistic, contrast, prompt_set, site, position)
    write_comparison(opened, question, bound, output)
    table = milestones(opened, question, bound)
    if as_json:
        print(json.dumps({"page": str(output), "statistic": statistic, "bound": bound, "items": records(table)}))
        return
    for row in said(table):
        print(f"{row['run']}  least cosine: {row['least cosine']}  separates: {row['separates']}")
    print(f"page  {output}")


def export(
    run: RunId,
    contrast: Annotated[str, typer.Option(help="Whose direction.")],
    site: Annotated[str, typer.Option(help="A site of the blocks, such as resid_pre.")] = "resid_pre",
    layer: Annotated[
        list[int] | None, typer.Option(help="A 0-based block; several by giving it again; none is all.")
    ] = None,
    position: Annotated[int | None, typer.Option(help="Token position; by default the last one measured.")] = None,
    format: Annotated[
        str, typer.Option(help="safetensors, npy, or gguf: a control vector of llama.cpp.")
    ] = "safetensors",
    output: Annotated[
        Path | None, typer.Option(help="Where it is written; by default here, under the run's name.")
    ] = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Take a contrast's direction to other tools: a unit vector, positive minus negative, with what it is of.

    For example: theodolite export RUN --contrast refusal --layer 15 --format npy
    """
    from theodolite.export import export_direction
    from theodolite.run_reader import open_run

    reader = open_run(settings_of(store=store).store, run)
    place = export_direction(reader, contrast, site, layer or (), position, format, output)
    print(json.dumps({"file": str(place)}) if as_json else place)
