"""The blocks of encoders, written from the architectures like those of `hand_runs`."""

from collections.abc import Callable

import torch
from support.hand_calls import Call, HandRun, Stream

from theodolite.sites import Site


def encoder(attend: Callable[[Stream, Call], Stream], norm: str) -> HandRun:
    """Post-norm: norm(x + attention(x)), then the same with the MLP."""

    def run(x: Stream, call: Call) -> dict[Site, Stream]:
        attn = attend(x, call)
        mid = call(norm, x + attn)
        added = call("output.dense", call("intermediate", mid))
        return {
            Site.ATTN_OUT: attn,
            Site.RESID_MID_SUM: x + attn,
            Site.RESID_MID: mid,
            Site.MLP_OUT: added,
            Site.RESID_POST: call("output.LayerNorm", mid + added),
        }

    return run


bert = encoder(
    lambda x, call: call("attention.output.dense", call("attention.self", x)), norm="attention.output.LayerNorm"
)
mpnet = encoder(lambda x, call: call("attention.attn", x), norm="attention.LayerNorm")


def post_norm(attention: str, norm1: str, mlp: str, norm2: str) -> HandRun:
    """As in BERT, with attention and MLP as one module each."""

    def run(x: Stream, call: Call) -> dict[Site, Stream]:
        attn = call(attention, x)
        mid = call(norm1, x + attn)
        added = call(mlp, mid)
        return {
            Site.ATTN_OUT: attn,
            Site.RESID_MID_SUM: x + attn,
            Site.RESID_MID: mid,
            Site.MLP_OUT: added,
            Site.RESID_POST: call(norm2, mid + added),
        }

    return run


def megatron_bert(x: Stream, call: Call) -> dict[Site, Stream]:
    """BERT with norms before the branches; the sums are inside the output modules."""
    nothing = torch.zeros_like(x)
    attn = call("attention.output", call("attention.self", call("attention.ln", x)), nothing)
    mid = x + attn
    added = call("output", call("intermediate", call("ln", mid)), nothing)
    return {Site.ATTN_OUT: attn, Site.RESID_MID: mid, Site.MLP_OUT: added, Site.RESID_POST: mid + added}


def albert(x: Stream, call: Call) -> dict[Site, Stream]:
    """BERT, with the norm after attention inside of its module."""
    added: list[Stream] = []
    dense = call.block.get_submodule("albert_layers.0.attention.dense")
    handle = dense.register_forward_hook(lambda _, __, output: added.append(output))
    call("albert_layers.0.attention", x)
    handle.remove()
    mid = call("albert_layers.0.attention.LayerNorm", x + added[0])
    hidden = call("albert_layers.0.activation", call("albert_layers.0.ffn", mid))
    mlp = call("albert_layers.0.ffn_output", hidden)
    return {
        Site.ATTN_OUT: added[0],
        Site.RESID_MID_SUM: x + added[0],
        Site.RESID_MID: mid,
        Site.MLP_OUT: mlp,
        Site.RESID_POST: call("albert_layers.0.full_layer_layer_norm", mid + mlp),
    }


rotary_encoder = post_norm("self_attn", "post_attention_layernorm", "mlp", "post_mlp_layernorm")


def bart(x: Stream, call: Call) -> dict[Site, Stream]:
    """BART: post-norm, with the projections of the MLP in the block itself."""
    attn = call("self_attn", x)
    mid = call("self_attn_layer_norm", x + attn)
    added = call("fc2", call("activation_fn", call("fc1", mid)))
    return {
        Site.ATTN_OUT: attn,
        Site.RESID_MID_SUM: x + attn,
        Site.RESID_MID: mid,
        Site.MLP_OUT: added,
        Site.RESID_POST: call("final_layer_norm", mid + added),
    }


def mbart(x: Stream, call: Call) -> dict[Site, Stream]:
    """The same with norms before the branches."""
    attn = call("self_attn", call("self_attn_layer_norm", x))
    mid = x + attn
    added = call("fc2", call("activation_fn", call("fc1", call("final_layer_norm", mid))))
    return {Site.ATTN_OUT: attn, Site.RESID_MID: mid, Site.MLP_OUT: added, Site.RESID_POST: mid + added}
