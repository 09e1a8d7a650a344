"""Compare forests of prompts with the padded batches of a plan, on the real chat model on the CPU in float32.

A row of a forest holds each distinct token of several prompts once: prompts that begin with the same tokens share them.
The tokens stand in depth-first order, a position id is a depth, and a token attends to its ancestors alone, through a
mask. Trees of prompts are packed into rows of a given width. Both ways compute the shared prefix once. The script
compares the states of the last tokens after the model, and runs all ways in turns. The last line is one JSON object;
`speed` is the time of the padded batches over that of the forest.
Usage: python benchmarks/forest.py --help
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import measuring  # first: it prepares the process before torch is imported
import numpy as np
import torch
from capture import CAPTURE, MIXES, base_model
from numpy.typing import NDArray
from transformers import DynamicCache

from theodolite.spec import TokenIds
from theodolite_jobs.capture.plan import SetPlan, batch_by_length
from theodolite_jobs.models.loaded import LoadedModel

SHARD_PROMPTS = (64, 256)
WIDTHS = (48, 96, 160, 256)
"""Smallest numbers of tokens of a row; a row is wider if its longest prompt is."""

LOWEST = torch.finfo(torch.float32).min


@dataclass(frozen=True)
class Tree:
    """The distinct tokens of some prompts, in depth-first order: ids, depths, and which tokens each one attends to."""

    ids: list[int]
    depths: list[int]
    ancestors: NDArray[np.bool_]  # (token, token), a token's own included
    last: dict[int, int]  # the index of each prompt's last token, by sample


@dataclass(frozen=True)
class Batch:
    """The inputs of one forward pass over rows of trees, and the (sample, row, column) of each prompt's last token."""

    ids: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor
    last: list[tuple[int, int, int]]


def main() -> None:
    options = measuring.read_options(
        "Compare forests of prompts with padded batches; print JSON.",
        mixes=([*MIXES], "prompts to run"),
        prompts=(256, "prompts of each mix"),
        repeats=(3, "turns of each way; the result has the median"),
    )
    folder = measuring.chat_model()
    model = base_model(folder)
    result = {
        name: [measure(model, MIXES[name](folder, options.prompts), size, options.repeats) for size in SHARD_PROMPTS]
        for name in options.mixes
    }
    measuring.publish({"mixes": result, "repeats": options.repeats}, options.out)


def measure(model: LoadedModel, tokens: list[TokenIds], shard_prompts: int, repeats: int) -> dict[str, Any]:
    plan = measuring.plan_mix(tokens, shard_prompts, CAPTURE.batch_tokens)
    states = partial(last_states, model, tokens=tokens, shared=plan.layout.shared_prefix)
    forests = {width: forest(plan, tokens, width) for width in WIDTHS}
    reference = states(padded(plan, tokens))
    errors = {width: relative_error(states(batches), reference) for width, batches in forests.items()}
    ways = {"padded": partial(measuring.run_bare, model, plan, tokens)}
    ways |= {str(width): partial(states, batches) for width, batches in forests.items()}
    seconds = {name: float(np.median(taken)) for name, taken in measuring.in_turns(ways, repeats).items()}
    return {
        "prompts": len(tokens),
        "shard_prompts": shard_prompts,
        "padded_tokens": plan.computed_tokens,
        "padded_seconds": seconds["padded"],
        "forests": [
            {
                "width": width,
                "tokens": sum(batch.ids.numel() for batch in batches),
                "speed": seconds["padded"] / seconds[str(width)],
                "max_error": errors[width],
            }
            for width, batches in forests.items()
        ],
    }


def padded(plan: SetPlan, tokens: Sequence[TokenIds]) -> list[Batch]:
    """Return the batches of a plan, each prompt in a row of its own."""
    batches = []
    for shard in plan.shards:
        for samples in shard.batches:
            rows = [[tree({sample: tokens[sample][plan.layout.shared_prefix :]}, [sample])] for sample in samples]
            batches.append(batch_of(rows, plan.layout.shared_prefix))
    return batches


def forest(plan: SetPlan, tokens: Sequence[TokenIds], width: int) -> list[Batch]:
    """Return batches of rows in which the prompts of a shard share the tokens that they begin with."""
    batches = []
    for shard in plan.shards:
        suffixes = {sample: tokens[sample][plan.layout.shared_prefix :] for sample in range(shard.start, shard.stop)}
        widest = max(width, *map(len, suffixes.values()))
        rows = packed([tree(suffixes, samples) for samples in groups(suffixes, widest)], widest)
        lengths = [sum(len(one.ids) for one in row) for row in rows]
        for chosen in batch_by_length(range(len(rows)), lengths, CAPTURE.batch_tokens):
            batches.append(batch_of([rows[row] for row in chosen], plan.layout.shared_prefix))
    return batches


def groups(suffixes: dict[int, TokenIds], width: int) -> list[list[int]]:
    """Return groups of samples whose prompts begin with the same token, each with at most `width` distinct tokens."""
    found: list[list[int]] = []
    size, previous = 0, ()
    for sample in sorted(suffixes, key=lambda sample: suffixes[sample]):
        ids = suffixes[sample]
        same = same_tokens(previous, ids)
        if same and size + len(ids) - same <= width:
            found[-1].append(sample)
            size += len(ids) - same
        else:
            found.append([sample])
            size = len(ids)
        previous = ids
    return found


def same_tokens(one: TokenIds, other: TokenIds) -> int:
    """Return the number of first tokens that two prompts share."""
    shorter = min(len(one), len(other))
    return next((index for index in range(shorter) if one[index] != other[index]), shorter)


def tree(suffixes: dict[int, TokenIds], samples: Sequence[int]) -> Tree:
    """Return the tree of some prompts, given in lexicographic order."""
    ids: list[int] = []
    depths: list[int] = []
    parents: list[int] = []
    last, path, previous = {}, [], ()
    for sample in samples:
        own = suffixes[sample]
        path = path[: same_tokens(previous, own)]
        for depth in range(len(path), len(own)):
            parents.append(path[-1] if path else -1)
            path.append(len(ids))
            ids.append(own[depth])
            depths.append(depth)
        last[sample], previous = path[-1], own
    ancestors = np.eye(len(ids), dtype=bool)
    for token, parent in enumerate(parents):
        if parent >= 0:
            ancestors[token] |= ancestors[parent]
    return Tree(ids, depths, ancestors, last)


def packed(trees: list[Tree], width: int) -> list[list[Tree]]:
    """Return rows of trees with at most `width` tokens: the first row with enough space gets the largest tree left."""
    rows: list[list[Tree]] = []
    for one in sorted(trees, key=lambda one: -len(one.ids)):
        fitting = (row for row in rows if sum(len(other.ids) for other in row) + len(one.ids) <= width)
        row = next(fitting, None)
        if row is None:
            rows.append(row := [])
        row.append(one)
    return rows


def batch_of(rows: list[list[Tree]], shared: int) -> Batch:
    """Return the inputs of a forward pass behind `shared` cached tokens; a padding token attends to the prefix."""
    width = max(sum(len(one.ids) for one in row) for row in rows)
    ids, positions = torch.zeros(2, len(rows), width, dtype=torch.long)
    mask = torch.full((len(rows), 1, width, shared + width), LOWEST)
    mask[..., : max(shared, 1)] = 0
    last = []
    for number, row in enumerate(rows):
        start = 0
        for one in row:
            stop = start + len(one.ids)
            ids[number, start:stop] = torch.tensor(one.ids)
            positions[number, start:stop] = torch.tensor(one.depths)
            seen = torch.from_numpy(one.ancestors)
            mask[number, 0, start:stop, shared + start : shared + stop] = torch.where(seen, 0.0, LOWEST)
            last += [(sample, number, start + token) for sample, token in one.last.items()]
            start = stop
    return Batch(ids, positions + shared, mask, last)


@torch.inference_mode()
def last_states(model: LoadedModel, batches: list[Batch], tokens: Sequence[TokenIds], shared: int) -> torch.Tensor:
    """Run the batches behind the shared prefix; return the model's output at each prompt's last token."""
    prefix = model.run(input_ids=torch.tensor([tokens[0][:shared]]), use_cache=True).past_key_values
    states = torch.empty(len(tokens), model.dimensions.d_model)
    for batch in batches:
        each = (len(batch.ids), -1, -1, -1)
        cache = DynamicCache([(layer.keys.expand(each), layer.values.expand(each)) for layer in prefix.layers])
        inputs = {"input_ids": batch.ids, "position_ids": batch.positions, "attention_mask": batch.mask}
        output = model.run(**inputs, past_key_values=cache, use_cache=True).last_hidden_state
        for sample, row, column in batch.last:
            states[sample] = output[row, column]
    return states


def relative_error(states: torch.Tensor, reference: torch.Tensor) -> float:
    return float(((states - reference).norm(dim=1) / reference.norm(dim=1)).max())


if __name__ == "__main__":
    main()
