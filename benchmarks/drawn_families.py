"""Capture tiny models whose settings are drawn by a seeded generator, and compare them with plain transformers.

Every family that can be surveyed gets a few configurations (`drawn_settings.py`). Nobody tunes them. If transformers
cannot build a configuration, or cannot run it on single prompts, the settings are drawn again, and counted.

The reference is the model with its head, loaded by transformers alone, which runs each prompt alone, unpadded, with
eager attention. Its sites come from the sums of its forward pass (`unpadded_sums.py`), in which no record and no probe
takes part. Theodolite loads the same files and captures the prompts in padded batches. The error of a vector is
‖x − y‖ / ‖y‖; that of a configuration is the largest. The parity certificate of each configuration is computed too.

A configuration is `captured`, `refused` (with the reason), or `wrong`: it passes the parity check, but its error is
larger than the bound of this check. The last line is one JSON object.

Usage: python benchmarks/drawn_families.py --help
"""

import json
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import measuring  # first: it prepares the process before torch is imported
import numpy as np
import torch
from drawn_settings import draw
from families import auto_of, language_models, one_line, save_tiny_model, tiny_config
from numpy.typing import NDArray
from transformers import CONFIG_MAPPING
from unpadded_sums import sites_of

from theodolite.errors import TheodoliteError
from theodolite.sites import Site
from theodolite.spec import TokenIds
from theodolite_jobs.capture.engine import Engine
from theodolite_jobs.capture.parity import FLOAT32_BOUND, certify
from theodolite_jobs.capture.plan import plan_set, probe_prompts
from theodolite_jobs.models.anatomy import dimensions_of
from theodolite_jobs.models.batching import can_share_prefix, length_class_of
from theodolite_jobs.models.families import is_encoder_alone, known_anatomy
from theodolite_jobs.models.load import load_config, load_model
from theodolite_jobs.models.loaded import LoadedModel
from theodolite_jobs.models.quiet import quiet_transformers
from theodolite_jobs.models.reference import relative_errors
from theodolite_jobs.models.supported import supported_families

DRAWS = 40  # attempts for one configuration
POSITIONS = (-4, -1)

Vectors = dict[Site, list[NDArray[np.float64] | None]]
"""Of one prompt: at each layer, (position, feature); None where the reference does not say."""


def main() -> None:
    options = measuring.read_options(
        "Capture tiny models with drawn settings; print JSON.",
        only=(None, "the model types, with commas between them"),
        each=(2, "configurations of each family that a probe finds; a family with a record gets one more"),
        seed=(0, "of the generator of the settings"),
    )
    torch.set_num_threads(1)  # a tiny model is slower on more
    configurations = []
    redrawn: Counter[str] = Counter()
    for name, known_by in families(options.only):
        for index in range(options.each + (known_by == "record")):
            configurations.append(result := configuration(name, f"{options.seed}/{name}/{index}", redrawn))
            measuring.say(f"{name:24} {index} " + ", ".join(str(result.get(key)) for key in SUMMARY))
    outcomes = Counter(one["outcome"] for one in configurations)
    errors = [one["max_error"] for one in configurations if one["outcome"] == "captured"]
    result = {
        "seed": options.seed,
        "outcomes": dict(outcomes),
        "max_error": max(errors, default=None),
        "redrawn": {"draws": sum(redrawn.values()), "by_reason": dict(redrawn.most_common())},
        "configurations": configurations,
    }
    measuring.publish(result, options.out)


SUMMARY = ("outcome", "max_error", "draws", "reason")


def families(only: str | None) -> list[tuple[str, str]]:
    """Return one model type for each text model that can be surveyed, and how its sites are known."""
    known = {row.family: row for row in supported_families() if row.known_by != "refused"}
    if only:
        return [(name, known[name].known_by if name in known else "probe") for name in only.split(",")]
    # The settings that are drawn are those of models of one stream.
    alone = {name for name in language_models() if not is_encoder_alone(CONFIG_MAPPING[name])}
    text_of = {name: row.note.rpartition("text model, ")[2] or name for name, row in known.items() if name in alone}
    chosen: dict[str, str] = {}
    for name, text in sorted(text_of.items(), key=lambda pair: pair[0] != pair[1]):
        chosen.setdefault(text if "text model, " in known[name].note else name, name)
    return sorted((name, known[name].known_by) for name in chosen.values())


def configuration(name: str, seed: str, redrawn: Counter[str]) -> dict[str, Any]:
    """Return the drawn settings of one configuration, and its outcome."""
    config_class = CONFIG_MAPPING[name]
    text = tiny_config(name).get_text_config().model_type if "text_config" in config_class.sub_configs else name
    for attempt in range(DRAWS):
        rng = random.Random(f"{seed}/{attempt}")
        with tempfile.TemporaryDirectory() as folder, quiet_transformers():
            try:
                settings = draw(text, rng)
                save_tiny_model(tiny_config(name, settings), folder)
                prompts = random_prompts(rng)
                reference = [plain(Path(folder), ids) for ids in prompts]
            except Exception as error:  # each family fails with another error
                redrawn[f"{name}: {one_line(error)[:120]}"] += 1
                continue
            facts = {"family": name, "settings": json.dumps(settings), "draws": attempt + 1}  # in one line
            return facts | outcome_of(Path(folder), prompts, reference)
    return {"family": name, "outcome": "not built", "draws": DRAWS}


def random_prompts(rng: random.Random) -> list[TokenIds]:
    """Return prompts of several lengths, which share their first tokens or not."""
    shared = [rng.randrange(3, 60) for _ in range(rng.choice((0, 9)))]
    lengths = (len(shared) + length for length in (5, 6, 8, 13, 21, 30))
    return [
        (*shared, 3 + index, *(rng.randrange(3, 60) for _ in range(n - len(shared) - 1)))
        for index, n in enumerate(lengths)
    ]


def plain(folder: Path, ids: TokenIds) -> Vectors:
    """Return the sites of one prompt in a newly loaded model, because some rotary kinds adapt to the prompts so far."""
    config = load_config(folder)
    eager = (
        {} if getattr(config, "alibi", False) and config.model_type == "falcon" else {"attn_implementation": "eager"}
    )
    model = auto_of(config).from_pretrained(folder, dtype=torch.float32, **eager).eval()
    found = sites_of(model, ids)
    if not all(np.isfinite(layer).all() for layers in found.values() for layer in layers if layer is not None):
        raise ValueError("the stream of a single prompt has NaN or infinity")
    return {site: [None if one is None else one[list(POSITIONS)] for one in layers] for site, layers in found.items()}


def outcome_of(folder: Path, prompts: Sequence[TokenIds], reference: Sequence[Vectors]) -> dict[str, Any]:
    """Return the errors of a captured model, or why it is refused."""
    facts: dict[str, Any] = {}
    try:
        config = load_config(folder)
        known_anatomy(config)  # a survey reads these first
        dimensions_of(config)
        model = load_model(folder, dtype="float32")
        sites = (*model.anatomy.taps, Site.RESID_FINAL)
        facts = {"known_by": model.anatomy.known_by, "sites": [str(site) for site in sites]}
        errors = captured_errors(model, sites, prompts, reference)
        facts["errors"] = {str(site): error for site, error in errors.items()}
        facts["max_error"] = float(np.max(list(errors.values())))
        facts["certified_error"] = certified(model, sites, prompts)
    except TheodoliteError as refusal:
        return {**facts, "outcome": "refused", "reason": " ".join(f"{type(refusal).__name__}: {refusal}".split())}
    except Exception as error:
        return {**facts, "outcome": "failed", "reason": one_line(error)}
    return {**facts, "outcome": "captured" if facts["max_error"] <= FLOAT32_BOUND else "wrong"}


def captured_errors(
    model: LoadedModel, sites: Sequence[Site], prompts: Sequence[TokenIds], reference: Sequence[Vectors]
) -> dict[Site, float]:
    """Return the largest error of each site that the reference has, of prompts in padded batches."""
    layers = range(model.dimensions.n_layers)
    plan = plan_of(model, prompts)
    captured = Engine(model, sites, layers).capture(plan.task(plan.shards[0], prompts)).activations
    # The sums of two parallel branches say only what enters and leaves a block.
    compared = sites if Site.RESID_MID in sites else (Site.RESID_PRE, Site.RESID_POST, Site.RESID_FINAL)
    errors: dict[Site, float] = {}
    for site in compared:
        ours = captured[site] if site is not Site.RESID_FINAL else captured[site][:, :, None]
        for row, vectors in enumerate(reference):
            for layer, theirs in enumerate(vectors[site]):
                if theirs is not None:
                    values = ours[row, :, layer].reshape(len(POSITIONS), -1)
                    errors[site] = float(np.maximum(errors.get(site, 0.0), relative_errors(values, theirs).max()))
    return errors


def plan_of(model: LoadedModel, prompts: Sequence[TokenIds]) -> Any:
    share = can_share_prefix(model.config, model.anatomy)
    options = {"shard_prompts": len(prompts), "batch_tokens": 4 * max(map(len, prompts)), "share_prefix": share}
    return plan_set("set", prompts, POSITIONS, **options, length_class=length_class_of(model.config))


def certified(model: LoadedModel, sites: Sequence[Site], prompts: Sequence[TokenIds]) -> float:
    layers = range(model.dimensions.n_layers)
    probes = {"set": probe_prompts(prompts)}
    return certify(model, sites, layers, {"set": plan_of(model, prompts).layout}, probes).max_error


if __name__ == "__main__":
    main()
