"""The choice between the one-token route and the full route, and the measured difference between them."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from theodolite.spec import TokenIds
from theodolite_jobs.effects.full_route import run_full
from theodolite_jobs.effects.intact import Intact, parameters_of, run_intact
from theodolite_jobs.effects.one_token import COLUMNS, run_one_token
from theodolite_jobs.effects.outcome import Outcome, Reading
from theodolite_jobs.effects.variants import Add, Location, Patch, Remove, Variant
from theodolite_jobs.models.loaded import LoadedModel
from theodolite_jobs.models.reference import relative_errors


def why_full_route(model: LoadedModel) -> str | None:
    """Return the reason why a model's variants need full forwards, or None if the one-token route computes them."""
    config = model.config.get_text_config()
    of_block = parameters_of(model.blocks[0])
    if not model.anatomy.causal:
        return "its other tokens attend to the last token, so a change there reaches them"
    if model.ranks > 1:
        return "its matrices are sharded over processes"
    if model.config._attn_implementation not in ("eager", "sdpa"):
        return f"its attention kernel {model.config._attn_implementation!r} takes no mask for each query"
    if getattr(config, "attn_temperature_tuning", False):
        return "its attention scales each token by its index in the input, so columns would count as later tokens"
    if getattr(config, "num_kv_shared_layers", 0):
        return "some of its layers use the keys and values of another layer"
    if other := _other_caches(config):
        return f"its cache has {other}, not only the keys and values of tokens"
    if "attention_mask" not in of_block:
        return "its blocks take no mask, so columns would attend to each other"
    if "position_ids" not in parameters_of(model.module) and "alibi" not in of_block:
        return "it takes no positions, so columns would have the positions of later tokens"
    return None


def _other_caches(config: Any) -> str:
    """Return the names of the kinds of cache that hold other things than the keys and values of each token."""
    kinds = {type(layer) for layer in DynamicCache(config=config).layers}
    return ", ".join(sorted(kind.__name__ for kind in kinds - {DynamicLayer, DynamicSlidingWindowLayer}))


def prepare_variants(model: LoadedModel, prompts: Sequence[TokenIds], locations: Iterable[Location]) -> Intact:
    """Return the intact forward of prompts of equal length, for the route that the model takes; see `run_intact`."""
    return run_intact(model, prompts, locations, is_cached=why_full_route(model) is None)


def run_variants(
    model: LoadedModel,
    intact: Intact,
    variants: Sequence[Variant],
    readings: Sequence[Reading] = (),
    columns: int = COLUMNS,
) -> Outcome:
    """Return what variants change, by the route that `intact` was prepared for."""
    if intact.calls:
        return run_one_token(model, intact, variants, readings, columns)
    return run_full(model, intact, variants, readings)


def route_error(model: LoadedModel, intact: Intact, locations: Sequence[Location]) -> float:
    """Return the largest ‖x − y‖ / ‖y‖ of `resid_final` and of the output between the two routes.

    The variants are a patch with another prompt's state (of a single prompt, its own in another order), a removal and a
    dose at each of `locations`, which `intact` has. The error is 0 if the model takes the full route.
    """
    if not intact.calls:
        return 0.0
    variants = []
    for location in locations:
        states = intact.states[location]
        other = states.roll(1, 0 if len(states) > 1 else -1)
        step = (states - other)[0]
        variants += [Variant({location: change}) for change in (Patch(other), Remove(step), Add(step))]
    ours, theirs = run_one_token(model, intact, variants), run_full(model, intact, variants)
    return max(_error(ours.final, theirs.final), _error(ours.output, theirs.output))


def _error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    # np.max returns NaN if any value is NaN, which then fails every bound.
    return float(relative_errors(ours.double().cpu().numpy(), theirs.double().cpu().numpy()).max(initial=0.0))
