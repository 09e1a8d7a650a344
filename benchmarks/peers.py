"""Other ways to capture the residual stream of a Llama model at the last token, for comparison of speed.

Each way runs batches of 32 prompts in the given order, with left padding. TransformerLens and nnsight are no
dependencies: `pip install -r benchmarks/requirements-peers.txt` adds them. A way whose package is missing is left out.
Ways:

- `hugging_face`: the causal model with `output_hidden_states=True`, and hooks for `resid_mid`, which it lacks;
- `generate`: the same with `generate(max_new_tokens=1)`, which applies the head to the last token only;
- `transformer_lens`: `run_with_cache` of the bridge, with a filter of names and the last position;
- `nnsight`: a trace that saves the inputs of blocks and of their second norms.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import measuring  # first: it prepares the process before torch is imported
import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM

from theodolite.sites import Site
from theodolite.spec import TokenIds
from theodolite_jobs.models.load import load_tokenizer
from theodolite_jobs.models.quiet import quiet_transformers

SITES = measuring.SITES
BATCH = 32

Vectors = dict[Site, NDArray[np.float32]]
"""The vectors of each site, (prompt, layer, d_model)."""

Way = Callable[[Sequence[TokenIds]], Vectors | None]

Batch = Callable[[torch.Tensor, torch.Tensor], Sequence[Sequence[torch.Tensor]]]
"""Return the last token's vectors of each site and layer, (prompt, d_model), for token ids and an attention mask."""


@cache
def causal_model(folder: Path) -> Any:
    with quiet_transformers():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def hugging_face(folder: Path) -> Way:
    model = causal_model(folder)

    def forward(ids: torch.Tensor, mask: torch.Tensor) -> Sequence[torch.Tensor]:
        return model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states

    return in_batches(with_resid_mid(model, forward))


def generate(folder: Path) -> Way:
    model = causal_model(folder)
    options = {"max_new_tokens": 1, "do_sample": False, "output_hidden_states": True, "pad_token_id": 0}

    def forward(ids: torch.Tensor, mask: torch.Tensor) -> Sequence[torch.Tensor]:
        output = model.generate(input_ids=ids, attention_mask=mask, return_dict_in_generate=True, **options)
        return output.hidden_states[0]

    return in_batches(with_resid_mid(model, forward))


def bridge_of(folder: Path) -> Any:
    """Return the model of TransformerLens."""
    from transformer_lens.model_bridge import TransformerBridge

    with quiet_transformers():
        return TransformerBridge.boot_transformers(str(folder), dtype=torch.float32, device="cpu")


def patching_loop(folder: Path) -> Callable[..., torch.Tensor]:
    """Return TransformerLens's intervention: a forward of all tokens with a hook on the last token's state.

    The function takes token ids (prompt, token), a site, a layer and a change of states (prompt, d_model). It returns
    the logits of the last token, (prompt, vocabulary).
    """
    bridge = bridge_of(folder)

    @torch.inference_mode()
    def intervene(
        ids: torch.Tensor, site: Site, layer: int, change: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        def replace(states: torch.Tensor, hook: Any) -> torch.Tensor:
            states[:, -1] = change(states[:, -1])
            return states

        logits = bridge.run_with_hooks(ids, fwd_hooks=[(f"blocks.{layer}.hook_{site}", replace)])
        return logits[:, -1]

    return intervene


def transformer_lens(folder: Path) -> Way:
    bridge = bridge_of(folder)
    names = [[f"blocks.{layer}.hook_{site}" for layer in range(bridge.cfg.n_layers)] for site in SITES]
    wanted = {name for of_site in names for name in of_site}

    def capture(ids: torch.Tensor, mask: torch.Tensor) -> Sequence[Sequence[torch.Tensor]]:
        _, cached = bridge.run_with_cache(
            ids, attention_mask=mask, names_filter=lambda name: name in wanted, pos_slice=slice(-1, None)
        )
        return [[cached[name][:, 0] for name in of_site] for of_site in names]

    return in_batches(capture)


def nnsight(folder: Path) -> Way:
    import nnsight as package

    model = package.TransformersModel(causal_model(folder), tokenizer=load_tokenizer(folder))

    def capture(ids: torch.Tensor, mask: torch.Tensor) -> Sequence[Sequence[torch.Tensor]]:
        with model.trace({"input_ids": ids, "attention_mask": mask}):
            pre, mid = package.save([]), package.save([])
            for block in model.model.layers:
                pre.append(block.input[:, -1].clone())
                mid.append(block.post_attention_layernorm.input[:, -1].clone())
        return [pre, mid]

    return in_batches(capture)


PACKAGES: dict[str, Callable[[Path], Way]] = {"transformer_lens": transformer_lens, "nnsight": nnsight}

WAYS: dict[str, Callable[[Path], Way]] = {
    "hugging_face": hugging_face,
    "generate": generate,
    **{name: way for name, way in PACKAGES.items() if find_spec(name)},
}


def in_batches(capture: Batch) -> Way:
    """Return the way that captures batch by batch; with left padding the last token is the last column."""

    @torch.inference_mode()
    def run(tokens: Sequence[TokenIds]) -> Vectors:
        batches = [capture(*left_padded(tokens[start : start + BATCH])) for start in range(0, len(tokens), BATCH)]
        return {
            site: torch.cat([torch.stack(list(batch[index]), dim=1) for batch in batches]).numpy()
            for index, site in enumerate(SITES)
        }

    return run


def with_resid_mid(model: Any, forward: Callable[[torch.Tensor, torch.Tensor], Sequence[torch.Tensor]]) -> Batch:
    """Return the last token of a forward's hidden states, and of the inputs of each block's second norm."""

    def capture(ids: torch.Tensor, mask: torch.Tensor) -> Sequence[Sequence[torch.Tensor]]:
        with last_of_resid_mid(model) as mid:
            pre = [hidden[:, -1].clone() for hidden in forward(ids, mask)[:-1]]
        return [pre, mid]

    return capture


def left_padded(prompts: Sequence[TokenIds]) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.zeros((len(prompts), max(map(len, prompts))), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, -len(prompt) :] = torch.tensor(prompt)
        mask[row, -len(prompt) :] = 1
    return ids, mask


@contextmanager
def last_of_resid_mid(model: Any) -> Iterator[list[torch.Tensor]]:
    """Collect the input of each block's second norm, which `hidden_states` lacks."""
    captured: list[torch.Tensor] = []
    handles = [
        block.post_attention_layernorm.register_forward_pre_hook(
            lambda _, args: captured.append(args[0][:, -1].clone())
        )
        for block in model.model.layers
    ]
    try:
        yield captured
    finally:
        for handle in handles:
            handle.remove()
