"""Names of what a run holds, and the captured arrays; result groups are in `theodolite.groups`."""

from theodolite.groups.record import STREAM_UNIT, Variable
from theodolite.sites import BLOCK_SITES

FORMAT = 1
"""Raised whenever an older Theodolite could no longer read what is written."""

CAPTURE_VERSION = 1
"""Raised whenever a captured number could change; part of every run id."""

RUN_RECORD = "run.json"
COMPLETE = "COMPLETE"
REPORT = "report.html"
ACTIVATIONS = "activations.zarr"
RESULTS = "results.zarr"


RESID = Variable(
    "resid",
    ("sample", "position", "layer", "d_model"),
    "Residual stream at a site; NaN before a prompt's first token and for quarantined prompts.",
    STREAM_UNIT,
    "float32",
)
RESID_FINAL = Variable(
    "resid_final",
    ("sample", "position", "d_model"),
    "Residual stream after the last block, before the final norm.",
    STREAM_UNIT,
    "float32",
)
MLP_POSITIVE = Variable(
    "mlp_positive",
    ("shard", "position", "layer", "unit"),
    "How many of a shard's usable prompts have the MLP's hidden unit positive before gating.",
    "prompts",
    "int32",
)
CAPTURED: dict[str, Variable] = {
    **dict.fromkeys(BLOCK_SITES, RESID),
    RESID_FINAL.name: RESID_FINAL,
    MLP_POSITIVE.name: MLP_POSITIVE,
}
"""What a set's group of activations may hold, by the arrays' names."""


def shard_key(name: str, shard_index: int) -> str:
    """Return the Zarr key of a capture shard of one array inside its set's group."""
    trailing = len(CAPTURED[name].dims) - 1
    return "/".join([name, "c", str(shard_index), *["0"] * trailing])
