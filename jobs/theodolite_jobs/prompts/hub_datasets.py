"""Read datasets of the Hugging Face hub into rows, at one commit, and no more rows than a set needs."""

import re
from collections.abc import Iterable
from typing import Any

from theodolite.errors import PromptError, one_line
from theodolite.spec import SurveySpec
from theodolite.spec_parts import PromptSetSpec
from theodolite.store.runs import RunRecord
from theodolite_jobs.prompts.arrow_files import decoded, without_nan
from theodolite_jobs.prompts.rows import Rows, named, numbered
from theodolite_jobs.prompts.selection import keep_where

_COMMIT = re.compile(r"[0-9a-f]{40}")


def pinned_set(name: str, prompt_set: PromptSetSpec) -> PromptSetSpec:
    """Return the set `name` with the commit of its dataset as its revision; sets from elsewhere stay the same.

    If the hub does not answer and the spec has no revision, the commit is that of the dataset in the cache.

    Raises:
        PromptError: the hub has no such dataset or revision, or it does not answer and the cache has no dataset.
    """
    kind, _, dataset = prompt_set.source.partition(":")
    revision = prompt_set.revision
    if kind != "hub" or (revision is not None and _COMMIT.fullmatch(revision)):
        return prompt_set

    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        commit = HfApi().dataset_info(dataset, revision=revision).sha
    except RevisionNotFoundError as error:
        raise PromptError(f"prompts.{name}.revision: the dataset {dataset} has no revision {revision!r}") from error
    except RepositoryNotFoundError as error:
        raise PromptError(
            f"prompts.{name}.source: the hub has no dataset {dataset}, or it is private and needs an access token"
        ) from error
    # No network, offline mode: the client and its HTTP library each raise their own exception types.
    except Exception as error:
        commit = _cached_commit(dataset, prompt_set) if revision is None else None
        if commit is None:
            lacking = "the cache has no such dataset" if revision is None else f"{revision!r} is no full commit"
            raise PromptError(
                f"prompts.{name}.source: the hub did not answer for {dataset} ({one_line(error)}), and {lacking}; "
                "offline, give a full commit that is in the cache as revision"
            ) from error
    return prompt_set.model_copy(update={"revision": commit})


def with_commits(spec: SurveySpec, record: RunRecord) -> SurveySpec:
    """Return the spec with the commits that the datasets of a run had, since a dataset may have changed."""
    commits = {
        (name, record.spec.prompts[name].source): facts.dataset_commit
        for name, facts in record.sets.items()
        if facts.dataset_commit is not None
    }
    prompts = {
        name: one.model_copy(update={"revision": commits.get((name, one.source), one.revision)})
        for name, one in spec.prompts.items()
    }
    return spec.model_copy(update={"prompts": prompts})


def read_dataset(name: str, dataset: str, prompt_set: PromptSetSpec) -> Rows:
    """Return the rows of a dataset on the hub: with a limit and without `draw`, only those that the set needs.

    Raises:
        PromptError: the dataset cannot be read at the set's revision, or several configurations are possible.
    """
    from datasets.utils.logging import disable_progress_bar

    disable_progress_bar()
    revision = prompt_set.revision
    try:
        builder = _builder(dataset, prompt_set)
        if revision is not None and _COMMIT.fullmatch(revision) and builder.hash != revision:
            # The library reads any other version from its cache if the hub does not answer.
            raise PromptError(
                f"prompts.{name}.revision: the hub did not answer for {dataset}, and the cache has the commit "
                f"{builder.hash}, but not {revision}"
            )
        if prompt_set.limit is not None and prompt_set.draw is None and "[" not in prompt_set.split:
            stream = builder.as_streaming_dataset(prompt_set.split)
            if stream.features:  # else it has no images
                stream = decoded(stream.features.arrow_schema, stream.decode(False))
            return _first_rows(name, stream, prompt_set, prompt_set.skip + prompt_set.limit)
        builder.download_and_prepare()
        # As stored: Python objects would decode images of other columns.
        table = builder.as_dataset(prompt_set.split).with_format("arrow")[:]
        return numbered(map(without_nan, decoded(table.schema, table.to_pylist())))
    except PromptError:
        raise
    # The library raises dozens of exception types, from a missing split to no network.
    except Exception as error:
        if isinstance(error, ValueError) and not prompt_set.data_files:
            _check_config(name, dataset, prompt_set)
        where = f"hub:{dataset}, split {prompt_set.split!r}"
        raise PromptError(f"prompts.{name}.source: {where}, cannot be read: {one_line(error)}") from error


def _builder(dataset: str, prompt_set: PromptSetSpec) -> Any:
    """Return what reads a dataset of the hub; never a local folder or a reader of files that has the same name."""
    from datasets import load_dataset_builder

    return load_dataset_builder(
        f"hf://datasets/{dataset}",
        prompt_set.config,
        data_files=prompt_set.data_files or None,
        revision=prompt_set.revision,
    )


def _cached_commit(dataset: str, prompt_set: PromptSetSpec) -> str | None:
    """Return the commit of the dataset that the library's cache has, or None."""
    try:
        commit = str(_builder(dataset, prompt_set).hash)
    # As above: any of several libraries may raise.
    except Exception:
        return None
    return commit if _COMMIT.fullmatch(commit) else None


def _first_rows(name: str, stream: Iterable[Any], prompt_set: PromptSetSpec, needed: int) -> Rows:
    """Return the first `needed` rows that `where` keeps, or fewer; the rows after them are not read."""
    rows: Rows = {}
    count = 0
    for values in stream:
        rows |= keep_where(name, {f"row {count}": without_nan(dict(values))}, prompt_set.where)
        count += 1
        if len(rows) == needed:
            break
    if count and not rows:
        raise PromptError(
            f"prompts.{name}.where: none of the {count} rows has the requested values; compare the spec with the "
            "dataset"
        )
    return rows


def _check_config(name: str, dataset: str, prompt_set: PromptSetSpec) -> None:
    """Raise PromptError if the dataset has several configurations and the spec names none, or another one."""
    from datasets import get_dataset_config_names

    try:
        configs = get_dataset_config_names(f"hf://datasets/{dataset}", revision=prompt_set.revision)
    except Exception:  # the first error explains it
        return
    if prompt_set.config not in configs and len(configs) > 1:
        problem = "is not given" if prompt_set.config is None else f"{prompt_set.config!r} does not exist"
        raise PromptError(f"prompts.{name}.config: {problem}; hub:{dataset} has {named(configs)}; name one of them")
