"""The definition of the analysis `travel`, written out prompt by prompt on the captured arrays."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from support.result_cases import Float64, Stored, cosine, mean_and_spread

from theodolite_jobs.groups.travel.formulas_nulls import DRAWS, family_wise_p, permuted_cosine

States = tuple[Float64, Float64 | None, list[Float64 | None]]
"""A prompt's states: block inputs and middles, (layer, d_model), and the blocks' outputs; None if not captured."""

BRANCHES = ("attention", "mlp", "block")
N_STEPS, N_PATH = 8, 8
"""Quantities of one prompt in a block, and of its path."""
VARIANCES = {
    "step_cosine_centred": (4,),
    "step_cosine_centred_null": (4, 2),
    "step_common_share": (),
    "variance": (3,),
    "variance_change": (3, 2),
}
"""Statistics of each block over all prompts, with their shapes in a block."""
OF_BLOCKS = {"step_norm": (3, 2), "step_cosine": (4, 2), "arc": (3, 2), **VARIANCES}
OF_PATH = {
    **dict.fromkeys(("path_length", "displacement", "arc_length", "great_circle"), (2,)),
    **dict.fromkeys(("path_ratio", "arc_ratio"), (2, 3)),
}
"""Statistics of blocks and of the path, with their shapes."""


def angle(x: Float64, y: Float64) -> float:
    """Return the angle of two vectors, from the chord of their unit vectors."""
    return 2 * float(np.arcsin(np.linalg.norm(x / np.linalg.norm(x) - y / np.linalg.norm(y)) / 2))


def states_of(of_sample: dict[str, Float64], final: Float64, layers: Sequence[int], n_layers: int) -> States:
    """Return the states of one prompt in sequential blocks; `of_sample` is site → (layer, d_model)."""
    stream, leaving = of_sample["resid_pre"], []
    for index, layer in enumerate(layers):
        if layer + 1 in layers:
            leaving.append(stream[index + 1])
        else:
            leaving.append(final if layer + 1 == n_layers else None)
    return stream, of_sample.get("resid_mid"), leaving


def without_middle(of_sample: dict[str, Float64], final: Float64, layers: Sequence[int], n_layers: int) -> States:
    """Return the states of one prompt in blocks whose attention and MLP have no state between them."""
    stream, _, leaving = states_of(of_sample, final, layers, n_layers)
    return stream, None, leaving


def steps_of(states: States, index: int) -> list[tuple[Float64, Float64] | None]:
    """Return start and end of the steps of attention, the MLP and the block; None if one was not captured."""
    stream, middle, leaving = states
    three = (stream[index], None if middle is None else middle[index], leaving[index])
    pairs = [(three[start], three[end]) for start, end in ((0, 1), (1, 2), (0, 2))]
    return [None if start is None or end is None else (start, end) for start, end in pairs]


def travel_of_sample(states: States, outputs: Sequence[Float64] | None, is_whole: bool) -> tuple[Float64, Float64]:
    """Return one prompt's steps, (layer, N_STEPS), and its path; `outputs` are the captured outputs of both branches.

    The steps are three norms, the cosines with the next step and with the input, and three arcs. The path is its
    length, displacement and ratio, those of its arcs, and both ratios before the last block.
    """
    stream, _, leaving = states
    found = np.full((len(stream), N_STEPS), np.nan)
    for index, out in enumerate(leaving):
        for branch, step in enumerate(steps_of(states, index)):
            if step is not None:
                found[index, branch] = np.sqrt(((step[1] - step[0]) ** 2).sum())
                found[index, 5 + branch] = angle(*step)
        for branch, output in enumerate(outputs or ()):
            found[index, branch] = np.sqrt((output[index] ** 2).sum())
        if out is None:
            continue
        found[index, 4] = cosine(out - stream[index], stream[index])
        following = leaving[index + 1] if index + 1 < len(stream) else None
        if following is not None:
            found[index, 3] = cosine(out - stream[index], following - out)
    path = np.full(N_PATH, np.nan)
    last = leaving[-1]
    if is_whole and last is not None:
        length, displacement = found[:, 2].sum(), np.linalg.norm(last - stream[0])
        arc, circle = found[:, 7].sum(), angle(stream[0], last)
        path[:6] = [length, displacement, length / displacement, arc, circle, arc / circle]
    if is_whole and len(stream) > 1:
        path[6] = found[:-1, 2].sum() / np.linalg.norm(stream[-1] - stream[0])
        path[7] = found[:-1, 7].sum() / angle(stream[0], stream[-1])
    return found, path


def trace(x: Float64, y: Float64) -> float:
    """Return the total over features of the covariance (n−1) of two arrays, (sample, d_model)."""
    if len(x) < 2:
        return np.nan
    return float(sum(np.cov(x[:, feature], y[:, feature])[0, 1] for feature in range(x.shape[1])))


def variances_of_samples(samples: Sequence[States]) -> dict[str, Float64]:
    """Return VARIANCES of the blocks, (layer, …), from the states of all prompts."""
    n_layers, n = len(samples[0][0]), len(samples)
    found = {name: np.full((n_layers, *shape), np.nan) for name, shape in VARIANCES.items()}
    block_steps: list[Float64 | None] = []
    z = np.full((4, 1 + DRAWS, n_layers), np.nan)

    def put(pair: int, index: int, x: Float64, y: Float64) -> None:
        """Fill in a cosine of deviations, its spread under permutations, and its z in each of them."""
        found["step_cosine_centred"][index, pair] = _correlation(x, y)
        dx, dy = x - x.mean(axis=0), y - y.mean(axis=0)
        lengths = np.sqrt((dx**2).sum() * (dy**2).sum())
        if n > 1 and lengths > 0:
            null_sd = np.sqrt(((dx @ dy.T) ** 2).sum() / (n - 1)) / lengths
            found["step_cosine_centred_null"][index, pair, 0] = null_sd
        z[pair, :, index] = permuted_cosine(x, y).z

    for index in range(n_layers):
        by_sample = [steps_of(states, index) for states in samples]
        block_steps.append(None)
        for branch, name in enumerate(BRANCHES):
            pairs = [pair for one in by_sample if (pair := one[branch]) is not None]
            if not pairs:
                continue
            start, end = (np.stack(states) for states in zip(*pairs, strict=True))
            step = end - start
            found["variance_change"][index, branch] = trace(step, step), 2 * trace(start, step)
            put(1 if name == "block" else 2 + branch, index, start, step)
            if name == "attention":
                found["variance"][index, 1] = trace(end, end)
            if name == "block":
                block_steps[index] = step
                found["variance"][index, [0, 2]] = trace(start, start), trace(end, end)
                mean, square = step.mean(axis=0), (step**2).sum(axis=1).mean()
                found["step_common_share"][index] = (mean @ mean - trace(step, step) / n) / square
    for index, (step, following) in enumerate(pairwise(block_steps)):
        if step is not None and following is not None:
            put(0, index, step, following)
    found["step_cosine_centred_null"][..., 1] = np.stack([family_wise_p(of_blocks) for of_blocks in z], axis=-1)
    return found


def _correlation(x: Float64, y: Float64) -> float:
    deviations = x - x.mean(axis=0), y - y.mean(axis=0)
    return cosine(*(one.reshape(-1) for one in deviations))


def expected_travel(
    stored: Stored,
    layers: Sequence[int],
    n_layers: int,
    states: Callable[..., States] = states_of,
    outputs: Sequence[str] = (),
) -> dict[str, Float64]:
    """Return all variables of `travel`; `outputs` are the sites of captured outputs of attention and the MLP."""
    sets = list(stored.arrays)
    shape, is_whole = (len(sets), 2), list(layers) == list(range(n_layers))
    expected = {"n_samples": np.zeros(shape), "n_tested": np.zeros(shape)}
    expected |= {name: np.full((*shape, len(layers), *own), np.nan) for name, own in OF_BLOCKS.items()}
    expected |= {name: np.full((*shape, *own), np.nan) for name, own in OF_PATH.items()}
    for at in np.ndindex(shape):
        name, position = sets[at[0]], (-2, -1)[at[1]]
        final = stored.final_at(name, position)
        if final is None:
            continue
        all_states, found = [], []
        for index, sample in enumerate(stored.usable(name)):
            of_sample = {
                site: values[sample, position].astype(np.float64) for site, values in stored.arrays[name].items()
            }
            all_states.append(states(of_sample, final[index], layers, n_layers))
            found.append(travel_of_sample(all_states[-1], [of_sample[site] for site in outputs], is_whole))
        expected["n_samples"][at] = expected["n_tested"][at] = len(found)
        lengths, angles = (np.stack([steps[:, column] for steps, _ in found]) for column in (2, 7))
        if is_whole:
            for path, n_blocks in enumerate((len(layers), len(layers) - 1)):
                squares = (lengths[:, :n_blocks] ** 2).mean(axis=0)
                expected["path_ratio"][at][path, 2] = np.sqrt(squares).sum() / np.sqrt(squares.sum())
                mean = angles[:, :n_blocks].mean(axis=0)
                expected["arc_ratio"][at][path, 2] = mean.sum() / np.arccos(np.prod(np.cos(mean)))
        steps, along = (np.stack(mean_and_spread(np.stack(values)), axis=-1) for values in zip(*found, strict=True))
        expected["step_norm"][at], expected["arc"][at] = steps[:, :3], steps[:, 5:]
        expected["step_cosine"][at][:, :2] = steps[:, 3:5]
        for name, column in {"path_length": 0, "displacement": 1, "arc_length": 3, "great_circle": 4}.items():
            expected[name][at] = along[column]
        expected["path_ratio"][at][:, :2], expected["arc_ratio"][at][:, :2] = along[[2, 6]], along[[5, 7]]
        for quantity, values in variances_of_samples(all_states).items():
            expected[quantity][at] = values
    return expected
