"""The record of a model family: its modules in memory, its tensors on disk, and the module of each site."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from theodolite.errors import SiteNotFoundError, UnsupportedModelError
from theodolite.sites import Site


@dataclass(frozen=True)
class Tap:
    """The source of a site: the input or the output of a module inside the block ("" is the block itself).

    The value is multiplied by `scale`: some families scale a branch after the module that computes it.
    """

    module: str
    side: Literal["input", "output"]
    scale: float = 1.0


@dataclass(frozen=True)
class Files:
    """Tensor names on disk, without the prefix of the embedding's name; a family's modules may have other names.

    Norms are stored under their modules' names in every family here.

    Attributes:
        embedding: the table of token embeddings.
        unembedding: the language-model head, if it is not the embedding.
        block: the prefix of a block's tensor names; `{}` is the layer.
        qkv: query, key and value projections, or the one tensor that contains all three.
        qkv_layout: `separate`; `concatenated` is Q, K, V one after the other; `grouped` is, for each key-value head,
            its queries, then its key, then its value.
        output: attention's output projection.
        qk_norm: norms of queries and keys; `{}` is the head if each head has its own norm.
        gate: the gate of a gated MLP.
        up: the MLP's first projection; with `gate_up_fused`, gate then up in one tensor.
        down: the MLP's second projection.
        experts: the prefix of an expert's tensor names, if the MLP has experts; `{}` is the expert.
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
    """The record of one family; module paths start at the base model (without a language-model head).

    Attributes:
        blocks: the path of the list of blocks.
        taps: the module inside the block that each site is read from.
        absent: the reason why a site does not exist.
        norms: module paths inside the block: `attention` and `mlp` act on the input of these branches;
            `attention_output` and `mlp_output` act on their output, or with `post_norm` on its sum with the stream.
        final_norm: the norm after the last block.
        embedding_norm: the norm between the token embedding and the first block, by its name on disk.
        mlp_units: the projection inside the block whose output is the input of the MLP's activation function; if it
            contains gate and up, the input is its first half. None if the MLP has experts, or if it is not known.
        norm_kind: root-mean-square or layer norm.
        norm_offset: the number that is added to a norm's stored scale before use.
        positions: the kind of position encoding.
        layers_without_rotary: the kind of layers (`config.layer_types`) without rotary positions.
        post_norm: the norms follow the sum of stream and branch, and their output is the next stream.
        causal: a token does not attend to later tokens.
        reserved_positions: the number of first rows of the position table that no token uses.
        load_options: keyword arguments that the base model's class needs.
        files: names on disk; None if they are not known.
        known_by: `record` for the table of families, `probe` for a probe of the loaded model.
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
        """The sites of the blocks, in the order of the stream."""
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


# Rotary kinds whose factor extends the context; the stated length may or may not include the factor.
_STRETCHING = ("dynamic", "linear", "yarn")

# The training length of BLOOM; ALiBi itself has no limit.
_BLOOM_CONTEXT = 2048


def dimensions_of(config: Any, reserved_positions: int = 0) -> Dimensions:
    """Return the sizes of a model from its configuration.

    Raises:
        UnsupportedModelError: the model has no attention heads, several sizes of block, or two streams.
    """
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(
            f"{config.model_type!r} has two residual streams (encoder and decoder); a survey needs a model with one"
        )
    text = config.get_text_config()
    if getattr(text, "is_heterogeneous", False):
        raise UnsupportedModelError(
            f"{config.model_type!r} has blocks of several sizes; a survey needs a model with one size"
        )
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
            f"{config.model_type!r} is not a supported transformer: its configuration lacks a size ({error})"
        ) from error


def _kv_heads(text: Any) -> int:
    # Falcon-7B sets multi_query; later Falcon models have groups and set new_decoder_architecture.
    if getattr(text, "multi_query", False) and not getattr(text, "new_decoder_architecture", False):
        return 1
    heads = getattr(text, "num_key_value_heads", None) or getattr(text, "num_kv_heads", None)
    return int(heads or text.num_attention_heads)


def _context_length(text: Any) -> int:
    stated = (getattr(text, name, None) for name in ("max_position_embeddings", "max_seq_len", "seq_length"))
    trained = next((int(length) for length in stated if length), _BLOOM_CONTEXT)
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
    """Raise SiteNotFoundError for a site that the model does not have, with the reason and the sites that it has."""
    for site in sites:
        if site not in anatomy.taps:
            reason = anatomy.absent.get(site, "its kind of block does not have it")
            existing = ", ".join(anatomy.sites)
            raise SiteNotFoundError(f"capture.sites: this model has no {site!s}: {reason}; it has {existing}")


def check_layers(dimensions: Dimensions, layers: Sequence[int]) -> None:
    """Raise SiteNotFoundError for a layer that the model does not have."""
    outside = [layer for layer in layers if layer >= dimensions.n_layers]
    if outside:
        raise SiteNotFoundError(
            f"capture.layers: this model has no layer {outside[0]}; it has 0 to {dimensions.n_layers - 1}"
        )
