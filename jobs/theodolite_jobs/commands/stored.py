"""Commands for the runs of a store: list, show, verify, remove, label, compare and export."""

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from theodolite_jobs.commands.options import AsJson, Dask, Ray, RunId, Store, print_value, run_of, settings_of, spec_of

if TYPE_CHECKING:
    from theodolite.store.runs import Run


def runs(store: Store = None, as_json: AsJson = False) -> None:
    """List the runs of a store, newest first.

    For example: theodolite run list --store s3://bucket/surveys
    """
    from theodolite.query.runs import summaries

    items = summaries(settings_of(store=store).store)
    if as_json:
        print(json.dumps({"items": items}))
        return
    if not items:
        typer.echo(f"no runs in {settings_of(store=store).store}; create one with: theodolite survey SPEC", err=True)
    for item in items:
        sets = ", ".join(f"{name} {size}" for name, size in item["sets"].items())
        about = [item["run_id"], item["state"], item.get("reason", sets or "no prompts"), item["created"][:16]]
        print("  ".join(filter(None, [*about, item["name"], ", ".join(item["tags"])])))


def show(
    run: RunId,
    arrays: Annotated[
        bool,
        typer.Option(
            "--arrays",
            help="Show each array of the results, and each column of other tables: unit and meaning.",
        ),
    ] = False,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Show the model, prompts, parity check, progress and results of a run.

    For example: theodolite run show RUN
    """
    from theodolite.query.runs import describe

    known = describe(run_of(run, settings_of(store=store)))
    if arrays:
        _show_arrays(known["results"], known["tables"], as_json)
        return
    if not as_json:  # only programs need the dimensions and the spec
        known["results"] = {name: ", ".join(names) or "tables" for name, names in known["results"].items()}
        known["tables"] = ", ".join(known["tables"])
        del known["spec"]
        if not known["analyses"]:
            del known["report"]  # the report is not written yet
    print_value(known, as_json)


def _show_arrays(results: dict[str, dict[str, list[str]]], tables: list[str], as_json: bool) -> None:
    from theodolite.groups import GROUPS

    items = [
        {"group": name, "array": one.name, "dims": found[one.name], "units": one.units, "description": one.description}
        for name, found in results.items()
        for one in GROUPS[name].variables
        if one.name in found
    ]
    items += [
        {"group": name, "table": table.name, "column": one.name, "units": one.units, "description": one.description}
        for name in results
        for table in GROUPS[name].tables
        for one in table.columns
        if table.name in tables and table.name != name
    ]
    if as_json:
        print(json.dumps({"items": items}))
        return
    for item in items:
        unit = "" if item["units"] in ("", "1") else f" [{item['units']}]"
        what = f"{item['array']}({', '.join(item['dims'])})" if "array" in item else f"{item['table']}.{item['column']}"
        print(f"{item['group']}  {what}{unit}  {item['description']}")


def verify(
    run: RunId,
    repair: Annotated[
        bool, typer.Option("--repair", help="Restore missing and damaged objects, and then compare.")
    ] = False,
    spec: Annotated[
        Path | None,
        typer.Option(
            help="Spec file of the run, for --repair. Required if run.json and its copy in the file COMPLETE are lost, "
            "or if files of the model or of the prompts have moved.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    store: Store = None,
    ray: Ray = None,
    dask: Dask = None,
    as_json: AsJson = False,
) -> None:
    """Compare each stored object of a run with its checksum.

    If objects are missing or damaged, the command lists them, and its exit status is 1. With --repair, it captures
    missing and damaged shards again, computes missing and damaged results again, and restores the other missing and
    damaged files. At the end it lists the objects whose bytes still differ from their checksums.

    For example: theodolite run verify RUN --repair
    """
    settings = settings_of(store=store, ray_address=ray, dask_address=dask)
    different: list[str] = []
    if repair:
        from theodolite.query.runs import run_id_of
        from theodolite_jobs.progress import Console
        from theodolite_jobs.repair.run import repair as repair_run

        run = run_id_of(settings.store, run)
        folder = spec.parent if spec else Path()
        different = repair_run(run, spec_of(spec) if spec else None, folder, settings, Console())
    _print_verification(run_of(run, settings), different, as_json)


def _print_verification(run: "Run", different: list[str], as_json: bool) -> None:
    """Print what a repair could not restore, and the missing and damaged objects; exit 1 if there is anything."""
    from theodolite.errors import one_line
    from theodolite.query.verification import unexpected_objects
    from theodolite.query.verification import verify as find_damages

    damages, unexpected = [*different, *find_damages(run)], unexpected_objects(run)
    if as_json:
        print(json.dumps({"run_id": run.id, "whole": not damages, "damages": damages, "unexpected": unexpected}))
    else:
        print("\n".join(damages) or f"{run.id}: no object is missing or damaged")
        for key in unexpected:
            print(f"{one_line(key)}: not an object of the run; Theodolite ignores it")
    if damages:
        raise typer.Exit(1)


def remove(
    run: RunId,
    yes: Annotated[bool, typer.Option("--yes", help="Delete the run without a question.")] = False,
    store: Store = None,
) -> None:
    """Delete a run from the store, with its activations and results, after you confirm it.

    You cannot restore a deleted run: to get its results again, run the survey again. While a survey, an analysis or a
    repair works on the run, the command refuses to delete it.

    For example: theodolite run remove RUN
    """
    from theodolite.query.runs import run_state
    from theodolite.store.leases import refuse_in_use
    from theodolite.store.objects import sizes
    from theodolite.store.removal import remove_run

    opened = run_of(run, settings_of(store=store))
    refuse_in_use(opened.store, opened.id)
    stored = sizes(opened.location)
    gigabytes = sum(stored.values()) / 1e9
    about = f"{opened.record.model.name}, created {opened.record.created:%Y-%m-%d}, state {run_state(opened)}"
    typer.echo(f"{opened.id}: {about}, {len(stored)} objects, {gigabytes:.2f} GB")
    if not yes:
        typer.confirm("Delete this run and all of its data?", abort=True)
    typer.echo(f"deleted {remove_run(opened)} objects of {opened.id}")


def label(
    run: RunId,
    name: Annotated[
        str | None, typer.Option(help="Name of the run; an empty text restores the name in the spec.")
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(help="Tag. Repeat the option for several. They replace all former tags; --tag '' removes all."),
    ] = None,
    remarks: Annotated[str | None, typer.Option(help="Remarks about the run. They replace the former ones.")] = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Change the name, the tags or the remarks of a run, and show them.

    Lists and the page show the labels with the run. The labels do not change the run: its id, its spec and its results
    stay the same.

    For example: theodolite run label RUN --name "refusal, first try" --tag paper --tag draft
    """
    from theodolite.store.labels import change_labels, parse_labels, read_labels

    opened = run_of(run, settings_of(store=store))
    tags = None if tag is None else [one for one in tag if one]
    given = {key: value for key, value in (("name", name), ("tags", tags), ("remarks", remarks)) if value is not None}
    options = {"name": "--name", "tags": "--tag", "remarks": "--remarks"}
    labels = change_labels(opened, parse_labels(given, options)) if given else read_labels(opened)
    print_value(labels.model_dump(mode="json"), as_json)


def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help="Run ids, as `theodolite run list` lists them.")],
    statistic: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Statistic with a value for each layer, such as variance_mean. The default is the AUROC and the "
            "debiased cosine.",
        ),
    ] = None,
    contrast: Annotated[
        list[str] | None,
        typer.Option(
            help="Contrast. Required if a run has several. If the runs have contrasts of different names, repeat the "
            "option with RUN:CONTRAST."
        ),
    ] = None,
    prompt_set: Annotated[
        str | None,
        typer.Option("--set", help="Prompt set. Use it for a statistic of one set, for example variance_mean."),
    ] = None,
    site: Annotated[str | None, typer.Option(help="Site. The default is resid_pre and resid_mid.")] = None,
    position: Annotated[
        str | None,
        typer.Option(help="Token position, -1 is the last token, or its name. The default is each run's last one."),
    ] = None,
    bound: Annotated[
        float,
        typer.Option(
            min=0.5,
            max=1,
            help="Two sets count as separated if the lower end of the simultaneous 95 % band of their AUROC is at "
            "least this value.",
        ),
    ] = 0.95,
    output: Annotated[Path, typer.Option(help="Output file (HTML).")] = Path("comparison.html"),
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Plot statistics of several runs over relative depth, from 0 (first input) to 1 (last output).

    The command also prints, for each run, the smallest debiased cosine and its depth, and the depth from
    which on the sets are separated. Two runs on the same prompts have a panel with the difference of their AUROCs.

    For example: theodolite run compare RUN RUN
    """
    from theodolite.query.compare import Question, milestones, records, statistics_of
    from theodolite.stored_runs import compared_runs
    from theodolite_jobs.report.comparison import milestone_texts, write_comparison

    opened, choices = compared_runs(runs, contrast or (), store)
    question = Question(statistic, prompt_set=prompt_set, site=site, position=position, **choices)
    write_comparison(opened, question, bound, output)
    table = milestones(opened, question, bound)
    if as_json:
        statistics = statistics_of(opened, question)
        print(json.dumps({"page": str(output), "statistics": statistics, "bound": bound, "items": records(table)}))
        return
    for row in milestone_texts(table):
        print(row["run"])
        print(f"  smallest debiased cosine: {row['smallest cosine']}")
        print(f"  largest AUROC: {row['largest AUROC']}")
        print(f"  first depth whose AUROC exceeds that of permuted labels: {row['above chance']}")
        print(f"  depth from which the AUROC band stays above {bound:g}: {row['separates']}")
    print(f"page  {output}")


def export(
    run: RunId,
    contrast: Annotated[
        str | None, typer.Option(help="Contrast whose direction is exported, or several: refusal,topic.")
    ] = None,
    activations: Annotated[
        bool, typer.Option("--activations", help="Export the stored activations of --set instead of a direction.")
    ] = False,
    prompt_set: Annotated[str | None, typer.Option("--set", help="Prompt set, for --activations.")] = None,
    to: Annotated[
        str | None,
        typer.Option(
            help="Format of --activations: arrow (a dataset of Hugging Face's datasets, which SAELens reads; the "
            "default), safetensors or npy."
        ),
    ] = None,
    site: Annotated[str, typer.Option(help="Block site, such as resid_pre.")] = "resid_pre",
    layer: Annotated[
        list[int] | None,
        typer.Option(
            help="Layer, from 0. Repeat the option for several. The default is all layers that the format can store."
        ),
    ] = None,
    position: Annotated[
        str | None,
        typer.Option(help="Token position, -1 is the last token, or its name. The default is the last captured one."),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            help="Format of a direction: safetensors (the default), npy, gguf (a control vector of llama.cpp and "
            "repeng), vllm-lens (a SteeringVector as JSON), or json (only the metadata)."
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            help="Output file; for --activations a folder, or a URL of a bucket. By default, its name begins with the "
            "run id, and it is in the current folder."
        ),
    ] = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Write a contrast's direction, or the activations of a prompt set, for other tools.

    The direction is one unit vector for each layer, from the mean of the negative set to the mean of the positive set.
    The file also contains metadata: the distance of the means, the norms of the stream, the reliability of the
    direction. For npy, the metadata is in a second file.

    Activations are written shard by shard, with checksums in SHA256SUMS. If the command is interrupted, run it again:
    it writes what is missing.

    For example: theodolite run export RUN --contrast refusal --layer 15 --format npy

    For example: theodolite run export RUN --activations --set harmful --layer 15 --to arrow --output s3://bucket/acts
    """
    from theodolite.errors import SpecError
    from theodolite.run_reader import open_run

    given = {"--contrast": contrast, "--format": format} if activations else {"--set": prompt_set, "--to": to}
    if unused := [option for option, value in given.items() if value is not None]:
        allowed = "without" if activations else "with"
        raise SpecError(f"{unused[0]}: given, but allowed only {allowed} --activations; change one of them")
    reader = open_run(settings_of(store=store).store, run)
    if activations:
        if prompt_set is None:
            raise SpecError(f"--set: not given; the run has {', '.join(reader.describe()['sets'])}")
        positions = None if position is None else [position]
        folder = reader.export_activations(
            prompt_set, site, layer=layer, position=positions, to=to or "arrow", output=output
        )
        print(json.dumps({"output": folder}) if as_json else folder)
        return
    if contrast is None:
        raise SpecError(f"--contrast: not given; the run has {', '.join(reader.describe()['contrasts'])}")
    with warnings.catch_warnings(record=True, action="always") as found:
        file = reader.export(
            contrast, site, layer=layer, position=position, format=format or "safetensors", output=output
        )
    for warning in found:
        typer.echo(f"warning: {warning.message}", err=True)
    print(json.dumps({"file": str(file)}) if as_json else file)
