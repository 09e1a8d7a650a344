"""Steps of attention and MLP through the blocks, and growth along depth."""

from collections.abc import Iterator

from theodolite.groups.record import N_SAMPLES, PER_BLOCK, STREAM_UNIT, Group, Variable


def _mean_and_spread(name: str, dims: tuple[str, ...], sentence: str, unit: str = "1") -> Iterator[Variable]:
    yield Variable(name, dims, f"{sentence}; mean over prompts.", unit)
    yield Variable(f"{name}_std", dims, f"{sentence}; standard deviation (n-1) over prompts.", unit)


VARIABLES = (
    N_SAMPLES,
    *_mean_and_spread("step_norm_attn", PER_BLOCK, "Norm of what attention adds", STREAM_UNIT),
    *_mean_and_spread("step_norm_mlp", PER_BLOCK, "Norm of what the MLP adds", STREAM_UNIT),
    *_mean_and_spread("step_norm_block", PER_BLOCK, "Norm of the whole block's step", STREAM_UNIT),
    *_mean_and_spread("step_cosine_next", PER_BLOCK, "Cosine between the block's step and the next block's"),
    *_mean_and_spread("step_cosine_stream", PER_BLOCK, "Cosine between the block's step and the stream it enters"),
    *_mean_and_spread("path_length", ("set", "position"), "Sum of the norms of all blocks' steps", STREAM_UNIT),
    *_mean_and_spread("displacement", ("set", "position"), "Norm of the way from first to last", STREAM_UNIT),
    *_mean_and_spread("path_ratio", ("set", "position"), "Path length over displacement; 1 is a straight line"),
)

GROUP = Group(
    name="travel",
    title="Travel and growth",
    version=1,
    variables=VARIABLES,
    tables=("travel", "growth"),
    needs=frozenset({"prompts", "resid_pre"}),
    of_sets=frozenset({"travel"}),
    requires=("moments", "curves"),
    order=5,
)
