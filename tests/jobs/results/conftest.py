"""A run with all groups of the passes, computed once for each size of shards."""

import pytest
from support.analysing import analyse
from support.nightly import at_night
from support.result_cases import CONTRASTS, REQUESTED, norms, silent, store


@pytest.fixture(scope="package", params=[5, *at_night([2, 100])])
def surveyed(request, tmp_path_factory):
    """A run of shards of so many prompts, and all of its groups."""
    stored = store(tmp_path_factory.mktemp("run"), shard_prompts=request.param, contrasts=CONTRASTS)
    analyse(stored.run, CONTRASTS, None, silent, requested=REQUESTED, norms=norms())
    return stored
