"""The analysis `logit_lens`: the tokens whose logits the difference of a contrast's means changes most, by depth."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from theodolite.errors import UnsupportedModelError
from theodolite.groups import GROUPS
from theodolite.groups.logit_lens.record import ENDS, TOKENS
from theodolite.sites import Site, depth
from theodolite.spec_parts import Label
from theodolite.store.runs import Run
from theodolite.store.tables import encode_table
from theodolite_jobs.groups.logit_lens.formulas import (
    back_through_norm,
    changes,
    in_order,
    leading_tokens,
    limit_of_z,
    through_norm,
)
from theodolite_jobs.models.config_numbers import logit_scale
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.results.context import Context, Result, missing_arrays
from theodolite_jobs.results.devices import available_device
from theodolite_jobs.results.permuted_labels import PermutedContrast, permuted_contrast
from theodolite_jobs.results.token_texts import token_texts
from theodolite_jobs.statistics.gram_matrices import centred
from theodolite_jobs.statistics.held_out import difference_weights
from theodolite_jobs.statistics.norms import Norm
from theodolite_jobs.statistics.permutations import DRAWS
from theodolite_jobs.tasks import run_tasks, shared

_NO_STATES = (Site.ATTN_OUT, Site.MLP_OUT)
"""Sites whose vectors are added to the stream: the final norm reads states, so it says nothing about them alone."""

_COLUMNS = GROUPS["logit_lens"].tables[0].names


class _Reader(NamedTuple):
    """What reads a direction: the final norm, the factor of the logits, and the mean row of the unembedding."""

    norm: Norm | None
    scale: float
    mean: NDArray[np.float64]


class _Place(NamedTuple):
    """A contrast at one position, site and index into the run's layers."""

    label: str
    position: Label
    site: Site
    layer: int


def digest_inputs(context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest."""
    return context.digest_inputs("logit_lens", context.contrasts)


def compute(context: Context) -> Result:
    """Return the group from the first stored samples of each contrast, at each state of the stream.

    The unembedding is read once, in blocks of rows, for all places; the vectors of all places are in memory meanwhile.
    Then the samples of a place are projected on the rows of its few tokens alone.

    Raises:
        ModelError: the model has no tokenizer.
        UnsupportedModelError: the model is an encoder, embeddings do not lie in the stream, or the files have no
            language-model head.
        RunDamagedError: a shard differs from its commit record, or contains a number that is not finite.
    """
    run, weights = context.run, context.weights
    check_decodable(weights)
    texts = token_texts(context.open_tokenizer(weights), weights.vocabulary_size)
    norm, scale = weights.final_norm(), logit_scale(weights.config)
    arrays = missing_arrays("logit_lens", context.coordinates)
    with context.tasks():
        contrasts = dict(_contrasts(context, arrays["n_used"]))
        places = [_Place(*at, *one) for at in contrasts for one in _states(run)]
        given = {at: shared(contrast) for at, contrast in contrasts.items()}
        of_places = [(run, given[place[:2]], place.site, place.layer, norm) for place in places]
        directions = list(run_tasks(_direction, of_places, context.progress, "directions through the final norm"))
        chosen = [index for index, vector in enumerate(directions) if vector.any()]  # the means differ
        frames = []
        if chosen:
            found = leading_tokens(
                weights.unembedding,
                texts != "",
                scale * np.stack([directions[index] for index in chosen]),
                TOKENS,
                available_device(),
                partial(context.progress, "tokens of directions"),
            )
            reader = shared(_Reader(norm, scale, found.mean))
            arguments = [
                (run, weights, given[places[index][:2]], places[index], reader, (found.raised[row], found.lowered[row]))
                for row, index in enumerate(chosen)
            ]
            frames = list(run_tasks(_tested, arguments, context.progress, "tokens against permuted labels"))
    table = _table(frames, texts)
    n_tokens, soft_cap = int((texts != "").sum()), getattr(weights.config, "final_logit_softcapping", None)
    attributes = {
        "contrasts": context.contrasts,
        "vocabulary": n_tokens,
        "limit": limit_of_z(n_tokens, DRAWS),
        "soft_cap": bool(soft_cap),
    }
    return Result(arrays, context.coordinates, attributes, tables={"direction_tokens": encode_table(table)})


def check_decodable(weights: Weights) -> None:
    """Raise UnsupportedModelError, with the reason, if vectors of the stream cannot be read as logits."""
    if not weights.anatomy.causal:
        raise UnsupportedModelError(
            f"{weights.config.model_type!r} is an encoder and predicts no next token, so directions cannot be decoded"
        )
    if not weights.embeds_into_stream:
        raise UnsupportedModelError("this model projects its embeddings into the stream, so vectors cannot be decoded")
    if not weights.has_unembedding:
        raise UnsupportedModelError("the model's files have no language-model head, so vectors cannot be decoded")


def _contrasts(context: Context, n_used: NDArray[Any]) -> Iterator[tuple[tuple[str, Label], PermutedContrast]]:
    """Yield the contrasts by name and position, and write their numbers of samples."""
    for row, label in enumerate(context.contrasts):
        for column, position in enumerate(context.coordinates["position"]):
            contrast = permuted_contrast(context, label, position)
            if contrast is not None:
                n_used[row, column] = [len(side.samples) for side in (contrast.positive, contrast.negative)]
                yield (label, position), contrast


def _states(run: Run) -> Iterator[tuple[Site, int]]:
    """Yield the captured states of the stream: site, and index into the run's layers."""
    for site in run.record.spec.capture.stream_sites:
        for index in range(len(run.record.layers)):
            if site not in _NO_STATES and run.record.has_site_at(site, index):
                yield site, index


def _direction(run: Run, contrast: PermutedContrast, site: Site, index: int, norm: Norm | None) -> NDArray[np.float32]:
    """Return J d of a place, zeros where the means are equal."""
    samples, midpoint = _read(run, contrast, site, index)
    (difference,) = difference_weights(contrast.labels[:1]) @ samples
    return through_norm(difference, midpoint, norm).astype(np.float32)


def _read(
    run: Run, contrast: PermutedContrast, site: Site, index: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the samples of both sets minus their mean, and the midpoint of the means of both sets."""
    samples = contrast.samples(run, site, index)
    midpoint = sum(side.mean(axis=0) for side in contrast.sides(samples)) / 2
    return centred(samples), midpoint


def _tested(
    run: Run,
    weights: Weights,
    contrast: PermutedContrast,
    place: _Place,
    reader: _Reader,
    ids: Sequence[NDArray[np.int64]],
) -> pd.DataFrame:
    """Return the rows of the table of one place, without the tokens' texts."""
    samples, midpoint = _read(run, contrast, place.site, place.layer)
    frames = []
    for end, of_end in zip(ENDS, ids, strict=True):
        rows = np.concatenate([weights.unembedding(slice(one, one + 1)).double().numpy() for one in of_end])
        read = reader.scale * back_through_norm(rows - reader.mean, midpoint, reader.norm)
        found = changes(samples @ read.T, contrast.labels)
        order = in_order(found, of_end, is_raised=end == ENDS[0])
        columns = {"place": np.arange(len(order), dtype=np.int32), "token_id": of_end[order].astype(np.int32)}
        columns |= {"change": found.change[order], "z": found.z[order]}
        frames.append(pd.DataFrame(columns).assign(end=end))
    layer = run.record.layers[place.layer]
    position = np.int32(place.position) if isinstance(place.position, int) else place.position
    at: Mapping[str, Any] = {
        **{"contrast": place.label, "position": position, "site": str(place.site)},
        **{"layer": np.int32(layer), "depth": np.int32(depth(place.site, layer))},
    }
    return pd.concat(frames, ignore_index=True).assign(**at)


def _table(frames: Sequence[pd.DataFrame], texts: NDArray[np.object_]) -> pd.DataFrame:
    """Return the table of all places; without any, a table without rows."""
    if not frames:
        kinds = dict.fromkeys(_COLUMNS, np.int32) | dict.fromkeys(("contrast", "site", "end", "token"), object)
        return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in (kinds | _NUMBERS).items()})
    table = pd.concat(frames, ignore_index=True)
    return table.assign(token=texts[table["token_id"]])[_COLUMNS]


_NUMBERS = {"change": np.float64, "z": np.float64}
