"""Compare the capture speed on the real chat model with plain Hugging Face and other tools, on the CPU in float32.

All ways capture `resid_pre` and `resid_mid` of every layer at the last token, for the same prompts, which are in the
model's chat template. The script first checks that their vectors agree. Then all ways run in turns, and the result has
the median over turns. Mixes of prompts: `chat`, 45 to 161 tokens; `pairs`, built-in harmful and harmless requests;
`nouns`, built-in nouns. Ways:

- those of peers.py: `hugging_face`, `generate` and, if they are installed, `transformer_lens` and `nnsight`;
- `theodolite`: plan and engine as in a replica, which also count active hidden units;
- `bare_forward`: the planned batches through the base model, without hooks.

Tokens per second count the tokens of the prompts, which are the same for all ways. The peak memory of a way is that of
a process that loads the model and runs the way once. The last line is one JSON object.
Usage: python benchmarks/capture.py --help
"""

import random
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import measuring  # first: it prepares the process before torch is imported
import numpy as np
import peers
import torch
from peers import SITES, Vectors, Way

from theodolite.spec import TokenIds
from theodolite.spec_parts import CaptureSpec, PromptSetSpec
from theodolite_jobs.capture.engine import Engine
from theodolite_jobs.capture.parity import FLOAT32_BOUND
from theodolite_jobs.capture.plan import SetPlan
from theodolite_jobs.models.facts import mlp_width
from theodolite_jobs.models.load import load_model, load_tokenizer
from theodolite_jobs.models.loaded import LoadedModel
from theodolite_jobs.prompts.sources import read_prompts
from theodolite_jobs.prompts.tokens import tokenize

CAPTURE = CaptureSpec(batch_tokens=2048, shard_prompts=64)


def main() -> None:
    options = measuring.read_options(
        "Compare capture speed with plain Hugging Face and other tools; print JSON.",
        mixes=([*MIXES], "prompts to capture"),
        prompts=(96, "prompts of each mix"),
        repeats=(3, "turns of each way; the result has the median"),
        threads=(0, "threads of each way; the default is torch's"),
    )
    if options.threads:
        torch.set_num_threads(options.threads)
    folder = measuring.chat_model()
    ways = {name: build(folder) for name, build in WAYS.items()}
    result = {name: measure_mix(folder, ways, MIXES[name](folder, options.prompts), options) for name in options.mixes}
    versions = {name: version(name) for name in peers.PACKAGES if name in WAYS}
    measuring.publish({"mixes": result, "repeats": options.repeats, "peers": versions}, options.out)


def measure_mix(folder: Path, ways: dict[str, Way], tokens: list[TokenIds], options: Any) -> dict[str, Any]:
    """Return the speed and the memory of each way for some prompts, after a check that their vectors agree."""
    measuring.say(f"{len(tokens)} prompts, {sum(map(len, tokens))} tokens")
    errors = check_same_vectors(ways, tokens)
    threads = torch.get_num_threads()
    memory = {name: measuring.in_new_process(memory_of, name, folder, tokens, threads) for name in WAYS}
    seconds, peak = measure(ways, tokens, options.repeats)
    return {**summary(base_model(folder), tokens, seconds, memory, peak), "max_error": errors}


def chat_mix(folder: Path, n_prompts: int) -> list[TokenIds]:
    """Return chat prompts with the mix's lengths: built-in sentences, shuffled, joined and truncated."""
    tokenizer = load_tokenizer(folder)
    sources = {name: PromptSetSpec(source=f"builtin:{name}") for name in ("harmful", "harmless")}
    sentences = [sentence for name, source in sources.items() for sentence in read_prompts(name, source, Path())]
    template_tokens = len(in_template(["a"], tokenizer)[0]) - 1
    rng = random.Random(0)
    texts = []
    for length in measuring.mix_lengths(n_prompts):
        # Twenty sentences are longer than the longest prompt.
        ids = tokenizer(" ".join(rng.sample(sentences, 20)))["input_ids"]
        texts.append(tokenizer.decode(ids[: length - template_tokens]))
    return in_template(texts, tokenizer)


def pairs(folder: Path, n_prompts: int) -> list[TokenIds]:
    """Return the first harmful and harmless requests in the model's chat template."""
    return [ids for name in ("harmful", "harmless") for ids in built_in(folder, name, n_prompts // 2)]


def nouns(folder: Path, n_prompts: int) -> list[TokenIds]:
    """Return the first built-in nouns in the model's chat template."""
    return built_in(folder, "nouns", n_prompts)


MIXES = {"chat": chat_mix, "pairs": pairs, "nouns": nouns}


def built_in(folder: Path, name: str, n_prompts: int) -> list[TokenIds]:
    prompts = read_prompts(name, PromptSetSpec(source=f"builtin:{name}"), Path())
    return in_template(prompts[:n_prompts], load_tokenizer(folder))


def in_template(texts: Sequence[str], tokenizer: Any) -> list[TokenIds]:
    prompt_set = PromptSetSpec(source="builtin:harmless", template="chat")
    return tokenize("mix", texts, prompt_set, tokenizer, CAPTURE.template_date).tokens


@cache
def base_model(folder: Path) -> LoadedModel:
    return load_model(folder, dtype="float32")


def theodolite(folder: Path) -> Way:
    model = base_model(folder)
    units = mlp_width(model.config) or 0

    def run(tokens: Sequence[TokenIds]) -> Vectors:
        plan = plan_mix(tokens)
        engine = Engine(model, measuring.CAPTURED, range(model.dimensions.n_layers))
        shards = [engine.capture(plan.task(shard, tokens, units)) for shard in plan.shards]
        return {site: np.concatenate([shard.activations[site] for shard in shards])[:, 0] for site in SITES}

    return run


def bare_forward(folder: Path) -> Way:
    model = base_model(folder)
    return lambda tokens: measuring.run_bare(model, plan_mix(tokens), tokens)


WAYS: dict[str, Callable[[Path], Way]] = {
    **peers.WAYS,
    "theodolite": theodolite,
    "bare_forward": bare_forward,
}


def plan_mix(tokens: Sequence[TokenIds]) -> SetPlan:
    return measuring.plan_mix(tokens, CAPTURE.shard_prompts, CAPTURE.batch_tokens)


def check_same_vectors(ways: dict[str, Way], tokens: Sequence[TokenIds]) -> dict[str, float]:
    """Return each way's largest relative error against `hugging_face`; exit if one is too large.

    Each way runs all prompts once, so this also warms it up.
    """
    vectors = {name: way(tokens) for name, way in ways.items()}
    reference = vectors.pop("hugging_face")
    errors = {name: largest_error(own, reference) for name, own in vectors.items() if own is not None}
    for name, error in errors.items():
        measuring.say(f"{name} against hugging_face: largest relative error {error:.1e}")
        if not error <= FLOAT32_BOUND:  # written so that a NaN fails too
            raise SystemExit(
                f"{name} and hugging_face differ by {error:.1e}, more than {FLOAT32_BOUND:.0e}; "
                "fix the difference before measuring speed"
            )
    return errors


def largest_error(vectors: Vectors, reference: Vectors) -> float:
    """Return the largest ‖x − y‖ / ‖y‖ over prompts, sites and layers."""
    norm = np.linalg.norm
    errors = [norm(vectors[site] - reference[site], axis=-1) / norm(reference[site], axis=-1) for site in SITES]
    return float(np.max(errors))


def measure(ways: dict[str, Way], tokens: Sequence[TokenIds], repeats: int) -> tuple[dict[str, float], float]:
    """Return each way's median seconds over turns, and the highest measured rate of a matrix product."""
    rates: list[float] = []
    matrix = {"matrix products": lambda: rates.append(measuring.matrix_rate(2048, torch.float32, measuring.CPU))}
    seconds = measuring.in_turns(matrix | {name: partial(way, tokens) for name, way in ways.items()}, repeats)
    return {name: np.median(seconds[name]) for name in ways}, max(rates)


def memory_of(name: str, folder: Path, tokens: Sequence[TokenIds], threads: int) -> int:
    """Return the peak memory of this process, which loads the model and runs one way once."""
    measuring.say(f"memory of {name}")
    torch.set_num_threads(threads)
    WAYS[name](folder)(tokens)
    return measuring.peak_memory_bytes()


def summary(
    model: LoadedModel, tokens: Sequence[TokenIds], seconds: dict[str, float], memory: dict[str, int], peak: float
) -> dict[str, Any]:
    plan, ours = plan_mix(tokens), seconds["theodolite"]
    facts = measuring.mix_facts(model, tokens)
    ways = {
        name: {
            "prompts_per_second": facts["prompts"] / taken,
            "tokens_per_second": facts["tokens"] / taken,
            "peak_memory_bytes": memory[name],
        }
        for name, taken in seconds.items()
    }
    return {
        "ratio_to_hugging_face": seconds["hugging_face"] / ours,
        "ratio_to_best_peer": min(seconds[name] for name in peers.WAYS) / ours,
        "ratio_to_bare_forward": seconds["bare_forward"] / ours,
        "share_of_matrix_peak": measuring.needed_operations(model, plan) / ours / peak,
        "ways": ways,
        "matrix_peak_operations_per_second": peak,
        "model": measuring.MODEL,
        **facts,
        "needed_tokens": measuring.needed_tokens(plan),
        "computed_tokens": plan.computed_tokens + plan.layout.shared_prefix,
        "shared_prefix": plan.layout.shared_prefix,
    }


if __name__ == "__main__":
    main()
