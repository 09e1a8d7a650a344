"""What is said of a model family: where its parts are in memory and on disk, and which of them is which site."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from theodolite.errors import SiteNotFoundError, UnsupportedModelError
from theodolite.sites import Site


@dataclass(frozen=True)
class Tap:
    """Where a site is read: the input or the output of a module inside the block ("" is the block itself).

    What is read is multiplied by `scale`: some families scale a branch after the module that computes it.
    """

    module: str
    side: Literal["input", "output"]
    scale: float = 1.0


@dataclass(frozen=True)
class Files:
    """Tensor names on disk, after what the embedding's name begins with; a family's modules may be called otherwise.

    Norms are stored as their modules are called in every family here.

    Attributes:
        embedding: the table of token embeddings.
        unembedding: the language-model head, where it is not the embedding.
        block: what the names of a block's tensors begin with; `{}` is the layer.
        qkv: query, key and value projections, or the one tensor that holds all three.
        qkv_layout: `separate`; `concatenated` is Q, K, V one after the other; `grouped` is, for each key-value head,
            its queries, then its key, then its value.
        output: attention's output projection.
        qk_norm: norms of queries and keys; `{}` is the head where each has its own.
        gate: the gate of a gated MLP.
        up: the MLP's first projection; with `gate_up_fused`, gate then up in one tensor.
        down: the MLP's second projection.
        experts: what the names of an expert's MLP begin with, where there are several; `{}` is the expert.
        transposed: projections are stored as [in, out].
    """

    embedding: str = "embed_tokens"
    unembedding: str = "lm_head"
    block: str = "layers.{}."
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    qkv_layout: Literal["separate", "concatenated", "grouped"] = "separate"
    output: str = "self_attn.o_proj"
    qk_norm: tuple[str, str] | None = None
    gate: str | None = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    gate_up_fused: bool = False
    experts: str | None = None
    transposed: bool = False


@dataclass(frozen=True)
class Anatomy:
    """One family; module paths start at the base model (the one without a language-model head).

    Attributes:
        blocks: the list of blocks.
        taps: where each site is read, inside the block.
        absent: why a site does not exist.
        norms: module paths inside the block: `attention` and `mlp` are what those branches read through,
            `attention_output` and `mlp_output` act on what they add.
        final_norm: the norm after the last block.
        embedding_norm: the norm between the token embedding and the first block, by its name on disk.
        mlp_units: the projection inside the block whose output the MLP's activation function is applied to; where it
            holds gate and up, its first half. None where there are several (experts), or it is not known.
        norm_kind: root-mean-square or layer norm.
        norm_offset: what is added to a norm's stored scale before it is used.
        positions: how the model knows where a token is.
        layers_without_rotary: the kind of layers (`config.layer_types`) that turn nothing.
        post_norm: the norms follow the sum of stream and branch, and what they put out is the stream.
        causal: a token never sees those after it.
        reserved_positions: first rows of the table of positions that no token uses.
        load_options: what the base model's class must be told.
        files: names on disk; None where they are not known.
        known_by: a record of this table, or a probe of the loaded model.
    """

    blocks: str
    taps: Mapping[Site, Tap]
    absent: Mapping[Site, str] = field(default_factory=dict)
    norms: Mapping[str, str] = field(default_factory=dict)
    final_norm: str | None = None
    embedding_norm: str | None = None
    mlp_units: str | None = None
    norm_kind: Literal["rms", "layer"] = "rms"
    norm_offset: float = 0.0
    positions: Literal["rotary", "rotary, interleaved", "learned", "ALiBi", "learned and relative", "unknown"] = (
        "rotary"
    )
    layers_without_rotary: str = ""
    post_norm: bool = False
    causal: bool = True
    reserved_positions: int = 0
    load_options: Mapping[str, Any] = field(default_factory=dict)
    files: Files | None = None
    known_by: Literal["record", "probe"] = "record"

    @property
    def sites(self) -> list[Site]:
        """The sites of its blocks, in the order of the stream."""
        return sorted(self.taps, key=list(Site).index)


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


# Rotary kinds whose factor says by how much the context grows, whether or not the stated length has it already.
_STRETCHING = ("dynamic", "linear", "yarn")

# What BLOOM was trained with; ALiBi itself has no limit.
_CONTEXT_WITHOUT_LIMIT = 2048


def dimensions_of(config: Any, reserved_positions: int = 0) -> Dimensions:
    """Return the sizes of a model from its configuration.

    Raises:
        UnsupportedModelError: it has no attention heads, or none of one size.
    """
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(f"{config.model_type!r} is an encoder with a decoder: it has two streams, not one")
    text = config.get_text_config()
    if getattr(text, "is_heterogeneous", False):
        raise UnsupportedModelError(f"{config.model_type!r} has blocks of several sizes; only one size can be surveyed")
    try:
        heads, d_model, layers = text.num_attention_heads, text.hidden_size, text.num_hidden_layers
        return Dimensions(
            n_layers=int(layers),
            d_model=int(d_model),
            n_heads=int(heads),
            n_kv_heads=_kv_heads(text),
            d_head=getattr(text, "head_dim", None) or d_model // heads,
            context_length=_context_length(text) - reserved_positions,
        )
    except (AttributeError, TypeError, ZeroDivisionError) as error:
        raise UnsupportedModelError(
            f"{config.model_type!r} is no transformer with blocks of one size: its configuration lacks a size ({error})"
        ) from error


def _kv_heads(text: Any) -> int:
    # Falcon-7B says multi_query; its later models have groups and say so otherwise.
    if getattr(text, "multi_query", False) and not getattr(text, "new_decoder_architecture", False):
        return 1
    found = getattr(text, "num_key_value_heads", None) or getattr(text, "num_kv_heads", None)
    return int(found or text.num_attention_heads)


def _context_length(text: Any) -> int:
    stated = (getattr(text, name, None) for name in ("max_position_embeddings", "max_seq_len", "seq_length"))
    trained = next((int(length) for length in stated if length), _CONTEXT_WITHOUT_LIMIT)
    stretched = [
        (one.get("original_max_position_embeddings") or trained) * float(one.get("factor") or 1)
        for one in rotary_settings(text)
        if one.get("rope_type") in _STRETCHING
    ]
    return int(max([trained, *stretched]))


def rotary_settings(config: Any) -> list[dict[str, Any]]:
    """Return a configuration's rotary settings: one, or one for each kind of layer, or none."""
    settings = getattr(config.get_text_config(), "rope_parameters", None) or {}
    per_kind = [value for value in settings.values() if isinstance(value, dict)]
    return per_kind or ([settings] if settings else [])


def check_sites(anatomy: Anatomy, sites: Sequence[Site]) -> None:
    """Raise SiteNotFoundError for a site that the model does not have, and say why and which it has."""
    for site in sites:
        if site not in anatomy.taps:
            reason = anatomy.absent.get(site, "it is a place in blocks of another kind")
            there = ", ".join(anatomy.sites)
            raise SiteNotFoundError(f"capture.sites: this model has no {site!s}: {reason}; it has {there}")


def check_layers(dimensions: Dimensions, layers: Sequence[int]) -> None:
    """Raise SiteNotFoundError for a layer that the model does not have."""
    outside = [layer for layer in layers if layer >= dimensions.n_layers]
    if outside:
        raise SiteNotFoundError(
            f"capture.layers: this model has no layer {outside[0]}; it has 0 to {dimensions.n_layers - 1}"
        )
