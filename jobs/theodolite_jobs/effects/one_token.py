"""The one-token route: each variant costs one token through the blocks from its first location on.

An intervention at the last token leaves the keys and values of all other tokens as they are. So the variants of a
prompt run as columns: queries at the position of the last token, each of which attends to the cached tokens and to
itself. Columns that start at a late layer skip the blocks before it.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from theodolite.sites import Site
from theodolite_jobs.effects.hooks import EVERY, Columns, Receive, Work, hook, working
from theodolite_jobs.effects.intact import BlockCall, Intact, parameters_of
from theodolite_jobs.effects.outcome import Collector, Outcome, Reading
from theodolite_jobs.effects.variants import Change, Location, Variant
from theodolite_jobs.models.anatomy import Tap
from theodolite_jobs.models.loaded import LoadedModel
from theodolite_jobs.models.reference import relative_errors

COLUMNS = 128
"""The largest number of columns of a prompt in one forward."""


@torch.inference_mode()
def run_one_token(
    model: LoadedModel,
    intact: Intact,
    variants: Sequence[Variant],
    readings: Sequence[Reading] = (),
    columns: int = COLUMNS,
) -> Outcome:
    """Return what variants change, with at most `columns` columns of a prompt in a forward.

    Each forward also has an intact column, which measures `Outcome.intact_error`. If a column is not finite, the
    columns run again in halves, until it is alone.

    Raises:
        KeyError: a location of `variants` or `readings` is not among those of the intact forward.
        ValueError: `intact` was run without what this route needs, or `columns` is less than 2.
    """
    if not intact.calls or columns < 2:
        raise ValueError(
            f"the one-token route needs an intact forward with is_cached=True, and 2 columns; columns is {columns}"
        )
    collector = Collector(intact, variants, readings)
    errors = [0.0]
    waiting = deque(_chunks(variants, collector.to_run, columns - 1))
    while waiting:
        chunk = waiting.popleft()
        error = _run_chunk(model, collector, chunk)
        if error is not None:
            errors.append(error)
        elif len(chunk) > 1:
            waiting.extendleft((chunk[len(chunk) // 2 :], chunk[: len(chunk) // 2]))
    return replace(collector.outcome, intact_error=max(errors))


def _chunks(variants: Sequence[Variant], chosen: Sequence[int], largest: int) -> Iterator[list[int]]:
    """Return the chosen variants in chunks of at most `largest`, by the layer at which they start.

    A chunk that is half full takes no variants of a later layer, as these would run through blocks for nothing.
    """
    chunk: list[int] = []
    for index in sorted(chosen, key=lambda index: variants[index].first.layer):
        is_later = bool(chunk) and variants[index].first.layer > variants[chunk[-1]].first.layer
        if len(chunk) == largest or (is_later and 2 * len(chunk) >= largest):
            yield chunk
            chunk = []
        chunk.append(index)
    if chunk:
        yield chunk


def _run_chunk(model: LoadedModel, collector: Collector, chunk: Sequence[int]) -> float | None:
    """Run variants as columns behind an intact column; return the error of the intact column.

    Return None if a column is not finite: a mask does not keep NaN from the other columns of a prompt.
    """
    intact, variants = collector.intact, collector.variants
    start = variants[chunk[0]].first.layer
    edits: dict[Location, list[tuple[int, Change]]] = {}
    for column, index in enumerate(chunk, start=1):
        for location, change in variants[index].changes.items():
            edits.setdefault(location, []).append((column, change))
    final: list[torch.Tensor] = []
    reads: list[tuple[Location, Receive]] = [(Location(Site.RESID_POST, len(model.blocks) - 1), final.append)]
    for index, reading in enumerate(collector.readings):
        if reading.location.layer >= start:
            reads.append((reading.location, collector.receiver(index, chunk, first_column=1)))
    with ExitStack() as contexts:
        contexts.enter_context(_columns(model, intact, start, len(chunk) + 1))
        contexts.enter_context(working(model, Columns(len(intact.tokens), EVERY), Work(edits, reads)))
        output = _forward(model, intact, len(chunk) + 1)
    collector.store(collector.outcome.final, chunk, final[0][:, 1:])
    collector.store(collector.outcome.output, chunk, output[:, 1:])
    finite_before = intact.final.isfinite().all(dim=-1)
    if not final[0][finite_before].isfinite().all():
        return None
    return _relative_error(final[0][finite_before, 0], intact.final[finite_before])


def _forward(model: LoadedModel, intact: Intact, columns: int) -> torch.Tensor:
    """Run columns at the position of the last token; return the output of the base model."""
    last = intact.tokens[:, -1:].repeat(1, columns)  # any token would do, as the first block's input is replaced
    positions = {"position_ids": torch.full_like(last, intact.tokens.shape[1] - 1)}
    if "position_ids" not in parameters_of(model.module):
        positions = {}
    output: torch.Tensor = model.run(input_ids=last, past_key_values=_cache_of(intact), use_cache=True, **positions)[0]
    return output


@contextmanager
def _columns(model: LoadedModel, intact: Intact, start: int, columns: int) -> Iterator[None]:
    """Give the blocks from `start` on the true stream, for every column, and biases that keep the columns apart."""
    stream = intact.states[Location(Site.RESID_PRE, start)]
    expanded: dict[int, torch.Tensor] = {}  # most blocks share a mask

    def bias_of(row: torch.Tensor | None) -> torch.Tensor:
        if id(row) not in expanded:
            expanded[id(row)] = _mask_of(row, intact, columns)
        return expanded[id(row)]

    def replace_biases(call: BlockCall) -> Any:
        biases = {
            name: bias_of(row) if name == "attention_mask" else _alibi_of(row, columns)
            for name, row in call.biases.items()
        }
        return lambda block, args, kwargs: _with_arguments(parameters_of(block), args, kwargs, biases)

    with ExitStack() as contexts:
        for block, call in zip(model.blocks[:start], intact.calls, strict=False):
            contexts.enter_context(_passing_through(block, call))
        enter = hook(
            model.blocks[start],
            Tap("", "input"),
            lambda hidden: stream[:, None].to(hidden).repeat(1, columns, 1).reshape(hidden.shape),
        )
        contexts.enter_context(enter)
        for block, call in zip(model.blocks[start:], intact.calls[start:], strict=True):
            contexts.enter_context(block.register_forward_pre_hook(replace_biases(call), with_kwargs=True))
        yield


@contextmanager
def _passing_through(block: torch.nn.Module, call: BlockCall) -> Iterator[None]:
    """Make a block return its input, in the form of its output; the model still counts its layers from 0."""
    names, own = parameters_of(block), vars(block).get("forward")

    def forward(*args: Any, **kwargs: Any) -> Any:
        hidden = args[0] if args else kwargs[names[0]]
        return (hidden,) if call.returns_tuple else hidden

    object.__setattr__(block, "forward", forward)
    try:
        yield
    finally:
        if own is None:
            object.__delattr__(block, "forward")
        else:
            object.__setattr__(block, "forward", own)


def _with_arguments(
    names: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any], changed: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call with some of them replaced, each by position or by name as it was."""
    positional = tuple(changed.get(name, value) for name, value in zip(names, args, strict=False))
    return positional, {**kwargs, **{name: value for name, value in changed.items() if name not in names[: len(args)]}}


def _mask_of(row: torch.Tensor | None, intact: Intact, columns: int) -> torch.Tensor:
    """Return the mask of columns, (…, column, key), from the last token's row (…, key) in the intact forward.

    A column sees the cached tokens that the last token sees, and itself.
    """
    if row is None:
        row = torch.zeros((1, 1, intact.tokens.shape[1]), device=intact.final.device)
    hidden = torch.finfo(intact.final.dtype).min
    row = row.to(intact.final.dtype).clamp(min=hidden)
    others = ~torch.eye(columns, dtype=torch.bool, device=row.device)
    cached = row[..., None, :-1].expand(*row.shape[:-1], columns, -1)
    own = row[..., None, -1:].expand(*row.shape[:-1], columns, columns).masked_fill(others, hidden)
    return torch.cat([cached, own], dim=-1)


def _alibi_of(row: torch.Tensor | None, columns: int) -> torch.Tensor | None:
    """Return the bias by position, (…, 1, key), in which every column has the position of the last token."""
    if row is None:
        return None
    return torch.cat([row[..., :-1], row[..., -1:].expand(*row.shape[:-1], columns)], dim=-1)[..., None, :]


def _cache_of(intact: Intact) -> DynamicCache:
    """Return a cache of the prompts without their last tokens; a forward adds nothing to it."""
    cache = DynamicCache()
    cache.layers = [_PromptLayer(keys, values) for keys, values in intact.cached]
    return cache


class _PromptLayer(DynamicLayer):
    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lazy_initialization(keys, values)
        self._prompt = keys, values
        self.keys, self.values = keys, values

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of the prompts and of the columns."""
        keys, values = self._prompt
        return torch.cat([keys, key_states], dim=-2), torch.cat([values, value_states], dim=-2)


def _relative_error(ours: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the largest ‖x − y‖ / ‖y‖ over prompts."""
    return float(relative_errors(ours.double().cpu().numpy(), reference.double().cpu().numpy()).max(initial=0.0))
