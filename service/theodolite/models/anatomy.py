"""Where each model family keeps its blocks, and which module's input or output is which site."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from theodolite.errors import SiteNotFoundError, UnsupportedModelError
from theodolite.sites import Site


@dataclass(frozen=True)
class Tap:
    """Where a site is read: the input or the output of a module inside the block ("" is the block itself)."""

    module: str
    side: Literal["input", "output"]


@dataclass(frozen=True)
class Anatomy:
    """Module paths of one family, from the base model (the one without a language-model head)."""

    blocks: str
    final_norm: str
    attention: str
    taps: Mapping[Site, Tap]


@dataclass(frozen=True)
class Dimensions:
    """The sizes of a model; `d_head` is the width of one head, which need not be d_model / n_heads."""

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    context_length: int

    def as_dict(self) -> dict[str, int]:
        """Return the sizes by name."""
        return asdict(self)


LLAMA_LIKE = Anatomy(
    blocks="layers",
    final_norm="norm",
    attention="self_attn",
    taps={
        Site.RESID_PRE: Tap("", "input"),
        Site.RESID_MID: Tap("post_attention_layernorm", "input"),
        Site.RESID_POST: Tap("", "output"),
    },
)

GPT2_LIKE = Anatomy(
    blocks="h",
    final_norm="ln_f",
    attention="attn",
    taps={
        Site.RESID_PRE: Tap("", "input"),
        Site.RESID_MID: Tap("ln_2", "input"),
        Site.RESID_POST: Tap("", "output"),
    },
)

FAMILIES: dict[str, Anatomy] = {
    "gpt2": GPT2_LIKE,
    "llama": LLAMA_LIKE,
    "mistral": LLAMA_LIKE,
    "qwen2": LLAMA_LIKE,
    "qwen3": LLAMA_LIKE,
}
"""By `config.model_type`. Each is proven against plain Hugging Face in tests/models."""

# These choose their frequencies from the longest prompt of a batch, so a batched run would differ from a single one.
_LENGTH_DEPENDENT_ROTARY = {"dynamic", "longrope"}


def anatomy_of(config: Any) -> Anatomy:
    """Return where a model's parts are.

    Raises:
        UnsupportedModelError: the family is not in the table, or its positions depend on the batch.
    """
    family = config.model_type
    if family not in FAMILIES:
        raise UnsupportedModelError(f"the model family {family!r} is not supported; supported: {', '.join(FAMILIES)}")
    rotary = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rotary in _LENGTH_DEPENDENT_ROTARY:
        raise UnsupportedModelError(
            f"{rotary!r} rotary positions depend on the longest prompt of a batch and are not supported yet"
        )
    return FAMILIES[family]


def dimensions_of(config: Any) -> Dimensions:
    """Return the sizes of a model from its configuration."""
    heads = config.num_attention_heads
    return Dimensions(
        n_layers=config.num_hidden_layers,
        d_model=config.hidden_size,
        n_heads=heads,
        n_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        d_head=getattr(config, "head_dim", None) or config.hidden_size // heads,
        context_length=config.max_position_embeddings,
    )


def can_share_prefix(config: Any) -> bool:
    """Return whether tokens that all prompts begin with may be computed once; a sliding window forgets them."""
    layer_types = getattr(config, "layer_types", None)
    if layer_types is not None:
        return set(layer_types) == {"full_attention"}
    return getattr(config, "sliding_window", None) is None


def check_sites(anatomy: Anatomy, dimensions: Dimensions, sites: Sequence[Site], layers: Sequence[int]) -> None:
    """Raise SiteNotFoundError for a site or a layer that the model does not have."""
    for site in sites:
        if site not in anatomy.taps:
            raise SiteNotFoundError(
                f"capture.sites: this model has no {site!s}; it has {', '.join(map(str, anatomy.taps))}"
            )
    outside = [layer for layer in layers if layer >= dimensions.n_layers]
    if outside:
        raise SiteNotFoundError(
            f"capture.layers: this model has no layer {outside[0]}; it has 0 to {dimensions.n_layers - 1}"
        )
