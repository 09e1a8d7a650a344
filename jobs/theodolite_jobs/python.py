"""Surveys from Python: `theodolite survey`, `plan`, `heads` and `run analyse` as functions."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from theodolite.proxies import reach_local_addresses_directly
from theodolite.run_reader import RunReader, open_run
from theodolite.settings import Settings, read_settings
from theodolite.spec import SurveySpec
from theodolite.spec_file import parse_spec
from theodolite.spec_keywords import GivenSpec, spec_of_keywords
from theodolite.store.runs import Run
from theodolite.stored_runs import Store, stored_run
from theodolite_jobs.progress import Console

Stages = Callable[[SurveySpec, Path, Settings, Console], Run]


def survey(
    spec: GivenSpec = None,
    *,
    store: Store = None,
    ray: str | None = None,
    dask: str | None = None,
    replicas: int | None = None,
    gpus_per_replica: int | None = None,
    **sections: Any,
) -> RunReader:
    """Capture activations, compute statistics, write the report, and return the run.

    An interrupted survey continues where it was if it is called again. For example::

        run = theodolite.survey(model="smollm2-135m-instruct", positive=["Name a city."], negative=["Name a river."])

    Args:
        spec: a dictionary, a YAML or JSON file, or a SurveySpec; None if keywords give all of it.
        store: a folder or URL; None is THEODOLITE_STORE, else ./theodolite-store.
        ray: address of a Ray cluster; None is THEODOLITE_RAY_ADDRESS, else this machine.
        dask: address of a Dask scheduler; None is THEODOLITE_DASK_ADDRESS, else threads of this machine.
        replicas: number of replicas of the model; None is as many as fit on the GPUs, or one.
        gpus_per_replica: GPUs of each replica; None is one in a cluster with GPUs.
        sections: sections of the spec that replace those of `spec`, such as `model`, `prompts`, `contrasts` and
            `analyses`. `model` may be an id, a folder or a file. Each of `prompts` may be a source as text, a list, or
            a column of pandas or of `datasets`. `positive` and `negative` are the prompts of two sets of these names
            with a contrast between them; `paired=True` says that prompt i belongs to prompt i.

    Raises:
        SpecError: the survey is not valid, or not possible; the message names the fields.
        TheodoliteError: of the model, the store or the cluster.
    """
    parsed, folder = spec_of_keywords(spec, **sections)
    cluster = {"ray_address": ray, "dask_address": dask, "replicas": replicas, "gpus_per_replica": gpus_per_replica}
    return _surveyed(parsed, folder, _settings(store, **cluster))


def plan(spec: GivenSpec = None, *, store: Store = None, **sections: Any) -> dict[str, Any]:
    """Return the tokens, memory, bytes and time of a survey, as `theodolite plan --json` prints them.

    It loads no weights. Arguments and errors are those of `survey`.
    """
    parsed, folder = spec_of_keywords(spec, **sections)
    return planned(parsed, folder, _settings(store))


def planned(spec: SurveySpec, folder: Path, settings: Settings) -> dict[str, Any]:
    """Return the estimate of a survey; built-in harmful prompts are shown only to those who ask for them."""
    from theodolite_jobs.estimate import plan_survey

    found = plan_survey(spec, folder, settings, with_last_tokens=True, with_example=True)
    if (found.get("example") or {}).get("is_harmful"):
        del found["example"]
    return found


def heads(
    model: str,
    *,
    offsets: Sequence[int] = (0,),
    fold_norm: bool = False,
    vectors: int = 20,
    words: bool = True,
    composition: tuple[int, int] | None = None,
    revision: str | None = None,
    store: Store = None,
    dask: str | None = None,
) -> RunReader:
    """Decompose the QK and OV circuits of all attention heads, without prompts, and return the run.

    Args:
        model: hub id, local folder, .gguf file, or alias.
        offsets: query position minus key position, for QK of models with rotary positions; 0 is always included.
        fold_norm: whether the norm before attention is folded into the weights.
        vectors: number of leading singular vectors to store for each circuit; without any there are no tokens.
        words: whether to also compute `sphere`, `weights` and `words`, which decodes the singular vectors into tokens.
        composition: first and last layer of the pairs of heads whose composition scores are computed.
        revision: branch, tag or commit on the hub.
        store: as for `survey`.
        dask: as for `survey`.

    Raises:
        SpecError: an option is not valid; the message names it.
        TheodoliteError: of the model or the store.
    """
    parsed = heads_spec(model, revision, offsets, fold_norm, vectors, words, composition)
    return _surveyed(parsed, Path(), _settings(store, dask_address=dask))


def heads_spec(
    model: str,
    revision: str | None,
    offsets: Sequence[int | str],
    fold_norm: bool,
    vectors: int,
    words: bool,
    composition: Sequence[int | str] | None,
) -> SurveySpec:
    """Return the spec of a survey of the heads alone; arguments and errors as of `heads`."""
    options = {"offsets": list(offsets), "fold_norm": fold_norm, "vectors": vectors, "composition": composition}
    spec = {
        "model": {"id": model, "revision": revision},
        "prompts": {},
        "analyses": None if words else ["heads"],
        "words": {} if words else None,
        "heads": options,
    }
    return parse_spec(spec, "heads")


def analyse(run_id: str, *, store: Store = None, dask: str | None = None) -> RunReader:
    """Compute the missing and outdated results of a captured run, write its report, and return the run.

    Raises:
        RunNotFoundError: the store has no such run.
        TheodoliteError: of the model or the store.
    """
    from theodolite_jobs.survey import analyse as analyse_run

    settings = _settings(store, dask_address=dask)
    run = stored_run(run_id, settings.store)
    analyse_run(run, settings, Console())
    return open_run(settings.store, run.id)


def _settings(store: Store, **given: Any) -> Settings:
    reach_local_addresses_directly()
    return read_settings(store=None if store is None else str(store), **given)


def run_stages(stages: Stages, spec: SurveySpec, folder: Path, settings: Settings) -> Run:
    """Run the stages of a survey, serve its metrics and show its progress, and return the run."""
    from theodolite_jobs.metrics_server import served

    with served(settings):
        return stages(spec, folder, settings, Console())


def _surveyed(spec: SurveySpec, folder: Path, settings: Settings) -> RunReader:
    from theodolite_jobs.survey import survey as run_survey

    return open_run(settings.store, run_stages(run_survey, spec, folder, settings).id)
