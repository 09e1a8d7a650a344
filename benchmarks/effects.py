"""Measure interventions at the last token of the real chat model: the one-token route against the full route.

At each of `layers` layers, spread over the depth, and at `resid_pre` and `resid_mid`, the variants are a patch (each
prompt receives the state of another), the removal of a direction, and `controls` removals of random directions. The
prompts have random tokens.

- `one_token`: seconds of the intact forward and of all variants, without logits. `intact_error` is the largest error
  of its intact columns.
- `full`: seconds of a forward of all tokens for each variant, for `sample` of the variants at evenly spread layers;
  `seconds_of_all` is their mean times the number of variants.
- `largest_error`: ‖x − y‖ / ‖y‖ of `resid_final` between the two routes, over these variants.
- `next_token_seconds`: logits, KL and log-odds of all variants, which both routes need.
- `transformer_lens`, if it is installed: seconds of its patching loop (`run_with_hooks` for each variant, with logits)
  for the same sample; `ratio` is that of all variants over `one_token` and `next_token_seconds` together.
  `largest_difference` is that of the log-probabilities of the most probable tokens from those of the one-token route.

All ways run in turns, and the result has the medians. The last line is one JSON object.
Usage: python benchmarks/effects.py --help
"""

import random
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import measuring  # first: it prepares the process before torch is imported
import numpy as np
import peers
import torch

from theodolite.sites import HALF_BLOCKS
from theodolite_jobs.effects.full_route import run_full
from theodolite_jobs.effects.intact import Intact, run_intact
from theodolite_jobs.effects.next_token import LogitHead, logit_head, next_token_change
from theodolite_jobs.effects.one_token import run_one_token
from theodolite_jobs.effects.variants import Location, Patch, Remove, Variant
from theodolite_jobs.models.load import load_config, load_model
from theodolite_jobs.models.loaded import LoadedModel
from theodolite_jobs.models.weights import Weights

FIRST, SECOND = (100, 101, 102), (200, 201)  # groups of tokens for the log-odds


def main() -> None:
    options = measuring.read_options(
        "Measure the one-token route against the full route; print JSON.",
        prompts=(16, "prompts"),
        tokens=(76, "tokens of each prompt"),
        layers=(30, "layers, spread over the depth"),
        controls=(4, "removals of random directions at each site and layer"),
        sample=(6, "variants of which the full route is measured"),
        repeats=(3, "turns; the result has the medians"),
        threads=(2, "threads"),
        folder=(None, "folder of another model, to try the script"),
    )
    torch.set_num_threads(options.threads)
    folder = measuring.chat_model() if options.folder is None else Path(options.folder)
    model = load_model(folder, dtype="float32")
    rng = random.Random(0)
    weights = Weights(folder, load_config(folder))
    prompts = [
        tuple(rng.randrange(3, weights.vocabulary_size) for _ in range(options.tokens)) for _ in range(options.prompts)
    ]
    count = model.dimensions.n_layers
    layers = sorted({round(index * (count - 1) / max(options.layers - 1, 1)) for index in range(options.layers)})
    locations = [Location(site, layer) for layer in layers for site in HALF_BLOCKS]
    variants = variants_at(run_intact(model, prompts, locations, is_cached=True), locations, options.controls)
    every = max(1, len(variants) // options.sample)
    sample = variants[every // 2 :: every][: options.sample]
    head = logit_head(weights)
    peer = peers.patching_loop(folder) if find_spec("transformer_lens") else None
    result = measure(model, prompts, locations, variants, sample, head, options.repeats, peer)
    sizes = {"prompts": options.prompts, "tokens": options.tokens, "layers": len(layers), "variants": len(variants)}
    name = folder.name if options.folder else measuring.MODEL
    measuring.publish({"model": name, **sizes, "repeats": options.repeats, **result}, options.out)


def variants_at(intact: Intact, locations: Sequence[Location], controls: int) -> list[Variant]:
    """Return the variants at each location: a patch, a removal, and removals of random directions."""
    generator = torch.Generator().manual_seed(0)
    variants = []
    for location in locations:
        state = intact.states[location]
        changes: list[Any] = [Patch(state.roll(1, 0)), Remove(state[0] - state[1])]
        changes += [Remove(torch.randn(state.shape[-1], generator=generator)) for _ in range(controls)]
        variants += [Variant({location: change}) for change in changes]
    return variants


def measure(
    model: LoadedModel,
    prompts: Sequence[tuple[int, ...]],
    locations: Sequence[Location],
    variants: Sequence[Variant],
    sample: Sequence[Variant],
    head: LogitHead,
    repeats: int,
    peer: Callable[..., torch.Tensor] | None = None,
) -> dict[str, Any]:
    """Return the seconds of each way, the ratios, and the largest differences."""
    outcomes: dict[str, Any] = {}

    def one_token() -> None:
        outcomes["intact"] = run_intact(model, prompts, locations, is_cached=True)
        outcomes["one_token"] = run_one_token(model, outcomes["intact"], variants)

    def next_token() -> None:
        next_token_change(head, outcomes["intact"], outcomes["one_token"], FIRST, SECOND)

    def full() -> None:
        intact = run_intact(model, prompts, locations, is_cached=False)
        outcomes["full"] = run_full(model, intact, sample)

    def loop() -> None:
        ids = torch.tensor(prompts)
        outcomes["loop"] = [
            peer(ids, at.site, at.layer, change) for variant in sample for at, change in variant.changes.items()
        ]

    ways = {"one_token": one_token, "next_token": next_token, "full": full}
    seconds = measuring.in_turns(ways | ({"loop": loop} if peer else {}), repeats)
    ours, of_tokens, theirs = (float(np.median(seconds[name])) for name in ("one_token", "next_token", "full"))
    of_all = theirs / (len(sample) + 1) * len(variants)  # the intact forward costs as much as a variant
    chosen = [variants.index(variant) for variant in sample]
    difference = outcomes["one_token"].final[:, chosen].double() - outcomes["full"].final.double()
    errors = difference.norm(dim=-1) / outcomes["full"].final.double().norm(dim=-1)
    return {
        "one_token": {"seconds": ours, "intact_error": outcomes["one_token"].intact_error},
        "full": {"seconds": theirs, "sample": len(sample), "seconds_of_all": of_all},
        "ratio": of_all / ours,
        "next_token_seconds": of_tokens,
        "largest_error": float(errors.max()),
        **(_of_peer(seconds["loop"], outcomes, head, chosen, len(variants), ours + of_tokens) if peer else {}),
    }


def _of_peer(
    seconds: Sequence[float],
    outcomes: dict[str, Any],
    head: LogitHead,
    chosen: Sequence[int],
    n_variants: int,
    ours: float,
) -> dict[str, Any]:
    """Return the numbers of TransformerLens's loop over the sample."""
    of_sample = float(np.median(seconds))
    differences = []
    for index, theirs in zip(chosen, outcomes["loop"], strict=True):
        own = head.logits(outcomes["one_token"].output[:, index]).log_softmax(dim=-1)
        top = own.argmax(dim=-1, keepdim=True)
        differences.append((theirs.log_softmax(dim=-1) - own).gather(-1, top).abs().max())
    of_all = of_sample / len(chosen) * n_variants
    return {
        "transformer_lens": {
            "version": version("transformer-lens"),
            "seconds": of_sample,
            "seconds_of_all": of_all,
            "ratio": of_all / ours,
            "largest_difference": float(max(differences)),
        }
    }


if __name__ == "__main__":
    main()
