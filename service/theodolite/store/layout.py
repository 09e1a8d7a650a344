"""Names of the objects of a run, and its captured arrays; `theodolite.groups` describes the analyses."""

from theodolite.groups.schema import STREAM_UNIT, Variable
from theodolite.sites import STREAM_SITES

FORMAT = 1
"""Version of the store's layout; a version of Theodolite reads only runs of its own format."""

CAPTURE_VERSION = 1
"""Version of the capture, part of every run id; a change that may alter a captured number increases it."""

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
HEAD_OUT = Variable(
    "head_out",
    ("sample", "position", "layer", "head", "d_head"),
    "Output of each attention head before W_O; NaN before a prompt's first token and for quarantined prompts.",
    "1",
    "float32",
)
MLP_POSITIVE = Variable(
    "mlp_positive",
    ("shard", "position", "layer", "unit"),
    "Number of a shard's usable prompts in which the MLP's hidden unit is active (positive before gating).",
    "prompts",
    "int32",
)
EXPERTS = Variable(
    "experts",
    ("sample", "position", "layer", "choice"),
    "Experts that the router of a layer selects for a token, ascending; -1 in layers without experts, before a "
    "prompt's first token and for quarantined prompts.",
    "1",
    "int16",
)
CAPTURED: dict[str, Variable] = {
    **dict.fromkeys(STREAM_SITES, RESID),
    HEAD_OUT.name: HEAD_OUT,
    RESID_FINAL.name: RESID_FINAL,
    MLP_POSITIVE.name: MLP_POSITIVE,
    EXPERTS.name: EXPERTS,
}
"""The arrays that a set's group of activations may have, by name."""


REDUCED = "reduced"
"""The name of the moments of a reduced shard, among its arrays, and the folder of their files in the run."""


def shard_key(name: str, shard_index: int) -> str:
    """Return the Zarr key of a capture shard of one array inside its set's group."""
    trailing = len(CAPTURED[name].dims) - 1
    return "/".join([name, "c", str(shard_index), *["0"] * trailing])


def prompts_key(prompt_set: str) -> str:
    """Return the key of a set's table of prompts in the run."""
    return f"prompts/{prompt_set}.parquet"


def tokens_key(prompt_set: str) -> str:
    """Return the key of the table of a set's token ids in the run."""
    return f"prompts/{prompt_set}.tokens.parquet"
