"""Damage objects of runs, repair the runs, and compare them."""

from collections.abc import Sequence
from itertools import cycle, product
from pathlib import Path
from typing import Any

import xarray as xr
from support.nightly import at_night
from support.sealed import reseal

from theodolite.query.verification import verify
from theodolite.settings import Settings
from theodolite.spec import SurveySpec
from theodolite.store.manifest import finished_groups
from theodolite.store.objects import keys
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run, open_run
from theodolite_jobs.progress import Console
from theodolite_jobs.repair.run import repair

UNFINISHED = "results: some of those that were requested are not finished (yet)"
REWRITTEN = ("COMPLETE", "report.html", "shards/")  # with new times, and new names of attempts


def settings(store: object) -> Settings:
    """Return the settings of a survey into a store."""
    return Settings(store=str(store), replicas=1, gpus_per_replica=0)


def store_of(run: Path) -> Path:
    """Return the store of a run's folder."""
    return run.parent.parent


def opened(run: Path) -> Run:
    """Return the run in a folder."""
    return open_run(str(store_of(run)), run.name)


def repair_again(run: Path, spec: SurveySpec | None = None) -> list[str]:
    """Repair a run, and return what the repair refused and what is still damaged."""
    return [*repair(run.name, spec, Path(), settings(store_of(run)), Console()), *verify(opened(run))]


def assert_same_bits(run: Path, whole: Path) -> None:
    """Check that two folders have the same objects, except those that state times and attempts."""
    stored = {key: (run / key).read_bytes() for key in keys(opened(run).location) if not key.startswith(REWRITTEN)}
    expected = {key: (whole / key).read_bytes() for key in stored}
    assert {key for key in stored if stored[key] != expected[key]} == set()
    assert set(keys(opened(whole).location)) == set(keys(opened(run).location))


def assert_same_results(run: Run, other: Run) -> None:
    """Check that two runs have the same activations, bit for bit, and the same numbers in all groups."""
    shards = [key for key in keys(run.location, "activations.zarr") if "/c/" in key]
    assert len(shards) > 3 * sum(facts.n_shards for facts in run.record.sets.values())
    for key in shards:
        assert (Path(run.url) / key).read_bytes() == (Path(other.url) / key).read_bytes(), key
    assert finished_groups(run) == finished_groups(other)
    for group in finished_groups(run):
        xr.testing.assert_identical(read_group(run, group), read_group(other, group))


def flip(file: Path) -> None:
    """Flip a bit in the middle of a file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x10
    file.write_bytes(content)


def flipped_or_lost(objects: Sequence[str], by_day: Sequence[str]) -> list[Any]:
    """Return each key with a flipped bit and with the object's loss, for the night except one of them for `by_day`."""
    cases = list(product(objects, (flip, Path.unlink)))
    chosen = list(zip(by_day, cycle((flip, Path.unlink))))
    return [*chosen, *at_night(case for case in cases if case not in chosen)]


def truncate(file: Path) -> None:
    """Remove the last byte of a file."""
    file.write_bytes(file.read_bytes()[:-1])


def swap(file: Path) -> None:
    """Exchange a commit record with another one."""
    other = file.with_name("00002.json")
    contents = file.read_bytes(), other.read_bytes()
    file.write_bytes(contents[1])
    other.write_bytes(contents[0])


def contradict(file: Path) -> None:
    """Change a field of a commit record, and its checksum."""
    reseal(file, start=4)


def is_named(run: Path, key: str) -> bool:
    """Return whether `verify` names an object, or its shard."""
    shard = "harmful/00001" if key.startswith("shards") or "/resid_pre/c/1/" in key else key
    return any(shard in problem for problem in verify(opened(run)))


def interrupt(*_arguments: object) -> None:
    """Stop as Ctrl-C does."""
    raise KeyboardInterrupt
