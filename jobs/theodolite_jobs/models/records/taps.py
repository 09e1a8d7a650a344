"""Where the sites of usual blocks are."""

from theodolite.sites import Site
from theodolite_jobs.models.anatomy import Tap

STREAM = {Site.RESID_PRE: Tap("", "input"), Site.RESID_POST: Tap("", "output")}


def in_parallel(attention: str, mlp: str, plus: str | None = None) -> dict[Site, Tap]:
    """Return the taps of a block whose attention and MLP both read the block's input; `plus` is a part of the MLP."""
    return {**STREAM, Site.ATTN_OUT: Tap(attention, "output"), Site.MLP_OUT: Tap(mlp, "output", plus=plus)}


def sequential(mid: str, attention: str, mlp: str, plus: str | None = None) -> dict[Site, Tap]:
    """Return the taps of a block that adds attention, then the MLP; the input of `mid` is the sum in between."""
    return {**in_parallel(attention, mlp, plus), Site.RESID_MID: Tap(mid, "input")}


def after_sum(norm: str, attention: str, mlp: str) -> dict[Site, Tap]:
    """Return the taps of a post-norm block: `norm` maps the sum of stream and attention to the next stream."""
    sums = {Site.RESID_MID: Tap(norm, "output"), Site.RESID_MID_SUM: Tap(norm, "input")}
    return {**in_parallel(attention, mlp), **sums}


def reading(attention: str, mlp: str) -> dict[str, str]:
    """Return the norms on the input of attention and of the MLP."""
    return {"attention": attention, "mlp": mlp}


def writing(attention: str, mlp: str) -> dict[str, str]:
    """Return the norms on the output of attention and of the MLP, or on its sum with the stream."""
    return {"attention_output": attention, "mlp_output": mlp}
