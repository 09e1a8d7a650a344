"""Point clouds: a set's first samples at one position, few enough for Gram matrices, read one layer at a time."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from theodolite.errors import RunDamagedError
from theodolite.sites import Site
from theodolite.spec_parts import Label
from theodolite.store.commits import damages
from theodolite.store.records import Commit
from theodolite.store.runs import Run
from theodolite.store.shards import read_slice
from theodolite_jobs.passes.samples import refuse_non_finite
from theodolite_jobs.passes.selections import quarantined
from theodolite_jobs.tasks import Progress, run_tasks


class PointCloud(NamedTuple):
    """Samples of a set at one position, few enough for a Gram matrix in memory.

    `position` is an index into the set's own positions, and `samples` are ascending indices into the set.
    """

    prompt_set: str
    position: int
    samples: Sequence[int]


def read_cloud(run: Run, cloud: PointCloud, site: Site, layer: int) -> NDArray[np.float32]:
    """Return the samples at a site and an index into the run's layers, (sample, d_model); `resid_final` has no layer.

    It reads only that layer, with two requests for each shard. The caller must have verified the shards.
    """
    values = read_slice(run, cloud.prompt_set, site, layer, cloud.samples[-1] + 1)[list(cloud.samples), cloud.position]
    refuse_non_finite(values, run, f"set {cloud.prompt_set}", site, layer, cloud.samples)
    return values


def first_usable(run: Run, name: str, position: Label, commits: Sequence[Commit], limit: int) -> PointCloud:
    """Return the first usable samples of a set whose activations are stored."""
    bad = quarantined(commits)
    usable = [sample for sample in range(run.record.bounds(name).n_kept) if sample not in bad][:limit]
    return PointCloud(name, run.record.sets[name].positions.index(position), usable)


def shards_of(clouds: Iterable[PointCloud], commits: Mapping[str, Sequence[Commit]]) -> list[Commit]:
    """Return the commit records of the shards that `read_cloud` reads for these point clouds."""
    last: dict[str, int] = {}
    for cloud in clouds:
        last[cloud.prompt_set] = max(last.get(cloud.prompt_set, -1), max(cloud.samples, default=-1))
    return [commit for name, stop in last.items() for commit in commits[name] if commit.start <= stop]


def check_shards(run: Run, commits: Sequence[Commit], progress: Progress) -> None:
    """Compare shards with their commit records; raise RunDamagedError if they differ."""
    for damage in run_tasks(_damages_of, [(run, commit) for commit in commits], progress, "checking shards"):
        if damage:
            raise RunDamagedError(f"{run.id}: {damage[0]}; run `theodolite run verify {run.id} --repair`")


def _damages_of(run: Run, commit: Commit) -> list[str]:
    return list(damages(run, commit))
