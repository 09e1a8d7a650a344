"""The definition of the result group `travel`, written out prompt by prompt on the captured arrays."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from support.result_cases import Float64, Stored, cosine, mean_and_spread

from theodolite_jobs.statistics.travel_nulls import DRAWS, family_wise_p, permuted_cosine

States = tuple[Float64, Float64 | None, list[Float64 | None]]
"""A prompt's states: block inputs and middles, (layer, d_model), and the blocks' outputs; None if not captured."""

BRANCHES = ("attn", "mlp", "block")
STEPS = (
    *("step_norm_attn", "step_norm_mlp", "step_norm_block", "step_cosine_next", "step_cosine_stream"),
    *("arc_attn", "arc_mlp", "arc_block"),
)
PATH = (
    *("path_length", "displacement", "path_ratio", "arc_length", "great_circle", "arc_ratio"),
    *("path_ratio_before_last", "arc_ratio_before_last"),
)
COSINES = tuple(f"step_cosine_{name}_centred" for name in ("next", "stream", "attn", "mlp"))
VARIANCES = (
    *COSINES,
    *(f"{name}_{part}" for name in COSINES for part in ("null_sd", "p_family")),
    "step_common_share",
    *("variance_pre", "variance_mid", "variance_post"),
    *(f"{name}_{branch}" for branch in BRANCHES for name in ("variance_step", "twice_covariance")),
)


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
    """Return one prompt's STEPS, (layer, step), and PATH; `outputs` are the captured outputs of both branches."""
    stream, _, leaving = states
    found = np.full((len(stream), len(STEPS)), np.nan)
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
    path = np.full(len(PATH), np.nan)
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
    """Return VARIANCES of the blocks, (layer,), from the states of all prompts."""
    n_layers, n = len(samples[0][0]), len(samples)
    found = {name: np.full(n_layers, np.nan) for name in VARIANCES}
    block_steps: list[Float64 | None] = []
    z = {name: np.full((1 + DRAWS, n_layers), np.nan) for name in COSINES}

    def put(cosine_name: str, index: int, x: Float64, y: Float64) -> None:
        """Fill in a cosine of deviations, its spread under permutations, and its z in each of them."""
        found[cosine_name][index] = _correlation(x, y)
        dx, dy = x - x.mean(axis=0), y - y.mean(axis=0)
        lengths = np.sqrt((dx**2).sum() * (dy**2).sum())
        if n > 1 and lengths > 0:
            found[f"{cosine_name}_null_sd"][index] = np.sqrt(((dx @ dy.T) ** 2).sum() / (n - 1)) / lengths
        z[cosine_name][:, index] = permuted_cosine(x, y).z

    for index in range(n_layers):
        by_sample = [steps_of(states, index) for states in samples]
        block_steps.append(None)
        for branch, name in enumerate(BRANCHES):
            pairs = [pair for one in by_sample if (pair := one[branch]) is not None]
            if not pairs:
                continue
            start, end = (np.stack(states) for states in zip(*pairs, strict=True))
            step = end - start
            found[f"variance_step_{name}"][index] = trace(step, step)
            found[f"twice_covariance_{name}"][index] = 2 * trace(start, step)
            put(COSINES[1 if name == "block" else 2 + branch], index, start, step)
            if name == "attn":
                found["variance_mid"][index] = trace(end, end)
            if name == "block":
                block_steps[index] = step
                found["variance_pre"][index], found["variance_post"][index] = trace(start, start), trace(end, end)
                mean, square = step.mean(axis=0), (step**2).sum(axis=1).mean()
                found["step_common_share"][index] = (mean @ mean - trace(step, step) / n) / square
    for index, (step, following) in enumerate(pairwise(block_steps)):
        if step is not None and following is not None:
            put(COSINES[0], index, step, following)
    for name, of_blocks in z.items():
        found[f"{name}_p_family"] = family_wise_p(of_blocks)
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
    ratios = [f"{name}_ratio{end}" for name in ("path", "arc") for end in ("", "_before_last")]
    expected |= {f"{name}_at_right_angles": np.full(shape, np.nan) for name in ratios}
    expected |= {name: np.full((*shape, len(layers)), np.nan) for name in VARIANCES}
    for name in STEPS:
        expected |= {f"{name}{end}": np.full((*shape, len(layers)), np.nan) for end in ("", "_std")}
    for name in PATH:
        expected |= {f"{name}{end}": np.full(shape, np.nan) for end in ("", "_std")}
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
            for end, n_blocks in {"": len(layers), "_before_last": len(layers) - 1}.items():
                squares = (lengths[:, :n_blocks] ** 2).mean(axis=0)
                expected[f"path_ratio{end}_at_right_angles"][at] = np.sqrt(squares).sum() / np.sqrt(squares.sum())
                mean = angles[:, :n_blocks].mean(axis=0)
                expected[f"arc_ratio{end}_at_right_angles"][at] = mean.sum() / np.arccos(np.prod(np.cos(mean)))
        for names, values in zip((STEPS, PATH), map(np.stack, zip(*found, strict=True)), strict=True):
            mean, std = mean_and_spread(values)
            for column, quantity in enumerate(names):
                expected[quantity][at], expected[f"{quantity}_std"][at] = mean[..., column], std[..., column]
        for quantity, values in variances_of_samples(all_states).items():
            expected[quantity][at] = values
    return expected
