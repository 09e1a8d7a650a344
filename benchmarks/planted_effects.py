"""Count how often the conclusion about a direction is right in small models whose truth is planted.

In each trial, a token of each prompt states its set. The first block writes the set along one direction of the last
token, which nothing reads. In half of the settings a later block also writes it along a second direction, which the
language-model head reads with a given strength: the model then uses the contrast's direction from the next block on. In
the other half the last block does so, behind all changed places: the sets then differ in their next token, but no
changed state has an effect. Attention and MLPs of all blocks also write other vectors, which the head reads. In some
settings the contrast's direction holds most of the variance.

The script prints a table. The last line is one JSON object with, for each setting, the number of trials with the right
conclusion, and with a false one.

Usage: python benchmarks/planted_effects.py --help
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import measuring  # first: it prepares the process before torch is imported
import numpy as np
import torch
import xarray as xr
from transformers import LlamaConfig, LlamaModel

from theodolite.groups import GROUPS
from theodolite.groups.effects.record import CONTROLS, INTERVENTIONS
from theodolite.groups.schema import SIDES
from theodolite.query.effects import exceeds_controls, onset_place
from theodolite.sites import Site
from theodolite_jobs.effects.intact import run_intact
from theodolite_jobs.effects.measure import measure
from theodolite_jobs.effects.next_token import LogitHead
from theodolite_jobs.effects.variants import Location
from theodolite_jobs.effects.work import Question
from theodolite_jobs.groups.effects.formulas_controls import directions_at, facts_of
from theodolite_jobs.groups.effects.inputs import stacked
from theodolite_jobs.groups.effects.means import variables_of
from theodolite_jobs.models.load import wrap
from theodolite_jobs.models.loaded import LoadedModel
from theodolite_jobs.statistics.folds import FOLDS
from theodolite_jobs.statistics.permutations import permuted_labels

BLOCKS, WIDTH, HEADS, TOKENS = 8, 64, 4, 8
LAYERS = tuple(range(1, BLOCKS))
VOCABULARY, WORDS = 80, 50  # tokens from 0 on are words
P, N = range(50, 60), range(60, 70)  # state the sets
LAST, YES, NO = 70, (71, 72), (73, 74, 75)
DOSES = (-1.0, 1.0)
KNOWN, CONTROL_DRAWS = 64, 20

STRENGTHS = (0.4, 0.8, 1.6, 4.0)


@dataclass(frozen=True)
class Setting:
    """What is planted.

    Attributes:
        strength: how strongly the head reads the second direction.
        is_read: whether it is written before the last block, so that changed states have an effect.
        spread: length of what is written along the first direction; a large one holds most of the variance.
        is_ordinary: whether the head reads the first direction as it reads any other vector, and not never.
    """

    strength: float
    is_read: bool
    spread: float = 1.0
    is_ordinary: bool = False


SETTINGS = [
    *(Setting(strength, is_read=True, spread=spread) for spread in (1.0, 6.0) for strength in STRENGTHS),
    *(Setting(strength, is_read=False) for strength in STRENGTHS),
    *(Setting(strength, is_read=False, spread=6.0) for strength in STRENGTHS),
    Setting(1.6, is_read=False, is_ordinary=True),
    Setting(1.6, is_read=False, spread=6.0, is_ordinary=True),
]


def main() -> None:
    options = measuring.read_options(
        "Count right and false conclusions about planted directions; print a table and JSON.",
        trials=(100, "trials of each setting"),
        prompts=(16, "prompts of each set whose states are changed"),
    )
    torch.set_num_threads(1)
    rows = []
    for setting in SETTINGS:
        trials = [trial(setting, seed, options.prompts) for seed in range(options.trials)]
        rows.append(
            {
                **asdict(setting),
                "trials": len(trials),
                "right": sum(found == truth for found, truth in trials),
                "claimed": sum(found is not None for found, _ in trials),
            }
        )
        measuring.say("  ".join(f"{name} {value}" for name, value in rows[-1].items()))
    measuring.publish({"settings": rows}, options.out)


def trial(setting: Setting, seed: int, prompts: int) -> tuple[int | None, int | None]:
    """Return the layer from which on the effects say that the direction is used, and the true one; None for never."""
    rng = np.random.default_rng(seed)
    reader = int(rng.integers(1, BLOCKS - 1)) if setting.is_read else BLOCKS - 1
    model, head = planted_model(setting, reader, seed)
    found = onset_place(exceeds_controls(effects_of(model, head, rng, prompts)))
    return None if found is None else int(found["layer"]), reader + 1 if setting.is_read else None


def planted_model(setting: Setting, reader: int, seed: int) -> tuple[LoadedModel, LogitHead]:
    """Return a model without norms whose block `reader` writes what the head reads, and its head."""
    torch.manual_seed(seed)
    module = LlamaModel(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            intermediate_size=2 * WIDTH,
            num_hidden_layers=BLOCKS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            hidden_act="tanh",  # without norms, the product of two linear functions would explode
        )
    )
    stated, written, read, *_ = torch.linalg.qr(torch.randn(WIDTH, WIDTH))[0]
    planted = torch.stack([stated, written, read])
    others = torch.eye(WIDTH) - planted.T @ planted
    spectrum = 0.95 ** torch.arange(WIDTH) * others
    with torch.no_grad():
        module.norm = torch.nn.Identity()
        for index, block in enumerate(module.layers):
            block.input_layernorm = block.post_attention_layernorm = torch.nn.Identity()
            attention, mlp = block.self_attn, block.mlp
            for scores in (attention.q_proj, attention.k_proj):
                scores.weight.zero_()  # so attention is the mean over tokens
            for reads in (attention.v_proj, mlp.gate_proj, mlp.up_proj):
                reads.weight.copy_(torch.randn_like(reads.weight) @ others / WIDTH**0.5)
            for writes in (attention.o_proj, mlp.down_proj):
                writes.weight.copy_(0.05 * spectrum @ torch.randn_like(writes.weight))
            attention.v_proj.weight[0] = stated
            attention.o_proj.weight[:, 0] = 0
            if index == 0:
                attention.o_proj.weight[:, 0] += TOKENS * setting.spread * written
            if index == reader:
                attention.o_proj.weight[:, 0] += TOKENS * read
        table = module.embed_tokens.weight
        table.copy_(torch.randn_like(table) @ others)
        for tokens, sign in ((P, 1), (N, -1)):
            table[list(tokens)] = sign * torch.normal(1.0, 0.5, (len(tokens), 1)) * stated
        rows = 0.1 * torch.randn(VOCABULARY, WIDTH) @ (others + setting.is_ordinary * torch.outer(written, written))
        rows[list(YES)] += setting.strength * read
        rows[list(NO)] -= setting.strength * read
    return wrap(module), LogitHead(rows)


def effects_of(model: LoadedModel, head: LogitHead, rng: np.random.Generator, prompts: int) -> xr.Dataset:
    """Return the effects of a model: directions of KNOWN prompts of each set, and changes of the first ones."""
    tokens = [prompt(rng, stating) for stating in (P, N) for _ in range(KNOWN)]
    places = [Location(Site.RESID_PRE, layer) for layer in LAYERS]
    states = run_intact(model, tokens, places, is_cached=False).states
    folds = np.arange(KNOWN) % FOLDS
    labels = permuted_labels(folds, folds, paired=False)[: 1 + CONTROL_DRAWS]
    found = [directions_at(states[place].double().numpy(), labels) for place in places]
    question = Question((Site.RESID_PRE,), LAYERS, DOSES, YES, NO, is_paired=False, has_parts=False)
    changed = [tokens[side * KNOWN + row] for row in range(prompts) for side in (0, 1)]
    measured = measure(model, head, question, stacked(found, {}), changed)
    arrays = variables_of(measured, DOSES, facts_of(found), (1, len(LAYERS)))
    dims = {one.name: one.dims[2:] for one in GROUPS["effects"].variables}
    axes = {
        "prompt_side": SIDES,
        "site": ["resid_pre"],
        "layer": LAYERS,
        "intervention": INTERVENTIONS,
        "control": CONTROLS,
        "dose": DOSES,
        **GROUPS["effects"].labels,
    }
    coordinates = {dim: list(labels) for dim, labels in axes.items()}
    return xr.Dataset({name: (dims[name], values) for name, values in arrays.items()}, coordinates)


def prompt(rng: np.random.Generator, stating: Sequence[int]) -> tuple[int, ...]:
    """Return random words around the token that states the set, and the last token."""
    words = rng.integers(0, WORDS, TOKENS - 1)
    words[rng.integers(0, TOKENS - 1)] = rng.choice(stating)
    return (*words.tolist(), LAST)


if __name__ == "__main__":
    main()
