"""Add an exported direction with three libraries, and compare what changes with the analysis `effects`.

The run is the newest one of a store; it must be one of the real chat model with `effects` (the demo's). For some
prompts, each library adds the difference of the means (`load_vector(FILE).added`) to the last token's state at each
changed layer. The result has the largest difference of the change of the log-odds from that in the table
`prompt_effects`, for each library, and the largest change. TransformerLens and nnsight are no dependencies:
`pip install -r benchmarks/requirements-peers.txt` adds them. The last line is one JSON object.
Usage: python benchmarks/exported_vectors.py --help
"""

from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import measuring  # first: it prepares the process before torch is imported
import peers
import torch

import theodolite
from theodolite.sites import Site
from theodolite_jobs.models.load import load_tokenizer
from theodolite_jobs.prompts.next_tokens import next_token_groups
from theodolite_jobs.statistics.next_token import log_odds

Steer = Callable[[torch.Tensor, int, torch.Tensor], torch.Tensor]
"""Return the logits of the next token, from token ids (1, token), a layer, and what is added to its last input."""


def main() -> None:
    options = measuring.read_options(
        "Add an exported direction with three libraries; print JSON.",
        store=("theodolite-store", "a store whose newest run has effects of the real chat model"),
        contrast=("refusal", "contrast"),
        prompts=(3, "prompts of each set"),
        threads=(2, "threads"),
    )
    torch.set_num_threads(options.threads)
    run = theodolite.open_run(options.store, theodolite.runs(options.store)["run_id"].iloc[0])
    with TemporaryDirectory() as scratch:
        path = run.export(options.contrast, output=Path(scratch) / "vectors.safetensors")
        added = theodolite.load_vector(path).added
    folder = measuring.chat_model()
    tokenizer = load_tokenizer(folder)
    groups = list(next_token_groups(tokenizer, {}).values())
    rows = run.table("prompt_effects").query("contrast == @options.contrast and dose in (-1, 1)")
    chosen = [of_set for _, of_set in rows.groupby("set", observed=True)]
    samples = {of_set["set"].iloc[0]: of_set["sample"].unique()[: options.prompts] for of_set in chosen}
    result: dict[str, Any] = {"model": measuring.MODEL, "contrast": options.contrast, "prompts": options.prompts}
    for name, way in WAYS.items():
        steer, errors, changes = way(folder), [], []
        for prompt_set, of_set in samples.items():
            prompts = run.prompts(prompt_set).set_index("sample")
            for sample in of_set:
                prompt = prompts.loc[sample]
                ids = chat_ids(tokenizer, prompt["text"])
                assert ids.shape[1] == prompt["n_tokens"]
                of_prompt = rows[(rows["set"] == prompt_set) & (rows["sample"] == sample)]
                for row in of_prompt.itertuples():
                    vector = torch.from_numpy(added[row.layer]) * row.dose
                    logits = torch.stack([steer(ids, row.layer, one) for one in (vector, 0 * vector)])
                    steered, intact = log_odds(logits.float().numpy(), *groups)
                    changes.append(abs(steered - intact))
                    errors.append(abs(steered - intact - row.log_odds))
        largest = {"largest_difference": float(max(errors)), "largest_change": float(max(changes))}
        result[name] = {**largest, "changes": len(changes)}
        measuring.say(f"{name}: {result[name]}")
    measuring.publish(result, options.out, **{name: version(name) for name in WAYS})


def chat_ids(tokenizer: Any, text: str) -> torch.Tensor:
    """Return the token ids of a prompt with the chat template, as the survey measured it."""
    messages = [{"role": "user", "content": text}]
    rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return torch.tensor([tokenizer.encode(rendered, add_special_tokens=False)])


def transformers(folder: Path) -> Steer:
    model = peers.causal_model(folder)

    @torch.inference_mode()
    def steer(ids: torch.Tensor, layer: int, vector: torch.Tensor) -> torch.Tensor:
        def add(_block: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
            state = args[0].clone()
            state[:, -1] += vector
            return (state, *args[1:])

        hook = model.model.layers[layer].register_forward_pre_hook(add)
        try:
            return model(ids).logits[0, -1]
        finally:
            hook.remove()

    return steer


def transformer_lens(folder: Path) -> Steer:
    change = peers.patching_loop(folder)
    return lambda ids, layer, vector: change(ids, Site.RESID_PRE, layer, lambda states: states + vector)[0]


def nnsight(folder: Path) -> Steer:
    import nnsight as package

    model = package.TransformersModel(peers.causal_model(folder), tokenizer=load_tokenizer(folder))

    @torch.inference_mode()
    def steer(ids: torch.Tensor, layer: int, vector: torch.Tensor) -> torch.Tensor:
        with model.trace({"input_ids": ids}):
            state = model.model.layers[layer].input.clone()
            state[:, -1] += vector
            model.model.layers[layer].input = state
            logits = package.save(model.lm_head.output[0, -1])
        return logits  # noqa: RET504 - known when the trace has ended

    return steer


PEERS = {"transformer_lens": transformer_lens, "nnsight": nnsight}
WAYS = {"transformers": transformers, **{name: way for name, way in PEERS.items() if find_spec(name)}}


if __name__ == "__main__":
    main()
