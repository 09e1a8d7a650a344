"""The record of a model family: its modules in memory, its tensors on disk, and the module of each site."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from theodolite.errors import SiteNotFoundError, UnsupportedModelError
from theodolite.sites import BLOCK_SITES, Site


@dataclass(frozen=True)
class Tap:
    """The source of a site: the input or the output of a module inside the block ("" is the block itself).

    The value is multiplied by `scale`: some families scale a branch after the module that computes it. Before, the
    output of `plus` is added, which runs earlier in the block: some families add the outputs of two modules.
    """

    module: str
    side: Literal["input", "output"]
    scale: float = 1.0
    plus: str | None = None


@dataclass(frozen=True)
class PartialTap:
    """The source of a site that only some blocks of a hybrid have."""

    tap: Tap
    layers: tuple[int, ...] = ()  # the blocks with the site, ascending; none before a configuration is known


@dataclass(frozen=True)
class MergedExperts:
    """The names of two tensors that hold the projections of all experts of a block, gate and up together."""

    gate_up: str  # up alone, if the experts have no gate
    down: str
    layout: Literal["expert, out, in", "expert, in, out"]
    gated: bool = True
    interleaved: bool = False  # gate and up alternate, instead of one after the other
    bias: str | None = None  # what the names of biases have after the tensor's name


@dataclass(frozen=True)
class Files:
    """Tensor names on disk, without the prefix of the embedding's name; a family's modules may have other names.

    Norms are stored under their modules' names, except those in `stored`.
    """

    embedding: str = "embed_tokens"  # the table of token embeddings
    # Names of the table in the order in which they are looked for: files of an encoder with a decoder may have the
    # encoder's own table beside a shared one, or one of three equal ones.
    own_embeddings: tuple[str, ...] = ()
    unembedding: str = "lm_head"  # the language-model head, if it is not the embedding
    block: str = "layers.{}."  # the prefix of a block's tensor names; `{}` is the layer
    # Query, key and value projections, or the one tensor that contains all three: `concatenated` is Q, K, V one after
    # the other; `grouped` is, for each key-value head, its queries, then its key, then its value.
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    qkv_layout: Literal["separate", "concatenated", "grouped"] = "separate"
    query_and_value_bias: tuple[str, str] | None = None  # tensors of biases that are stored apart; keys have none
    # Multi-head latent attention (DeepSeek): with it, `qkv` is empty, and models/latent.py names the tensors.
    latent: bool = False
    gated: bool = False  # the tensor of queries holds, for each head, its queries, then a gate of its output
    output: str = "self_attn.o_proj"  # attention's output projection
    sinks: str | None = None  # a score of each head that the softmax adds to those of the tokens, without a value
    qk_norm: tuple[str, str] | None = None  # norms of queries and keys; `{}` is the head if each head has its own norm
    gate: str | None = "mlp.gate_proj"  # the gate of a gated MLP
    up: str = "mlp.up_proj"  # the MLP's first projection; with `gate_up_fused`, gate then up in one tensor
    down: str = "mlp.down_proj"  # the MLP's second projection
    gate_up_fused: bool = False
    up_and_gate: str | None = None  # the one tensor of up, then gate, of a family with two modules in memory
    # The prefix of an expert's tensor names, if MLPs have experts; `{}` is the expert. After it, names of projections
    # are those above without their own prefix, so that a block without experts may have a dense MLP.
    experts: str | MergedExperts | None = None
    merged: MergedExperts | None = None  # the same, for files that hold all experts of a block in two tensors
    shared_expert: str | None = None  # the same prefix of the expert that all tokens use
    transposed: bool = False  # projections are stored as [in, out]
    stored: Mapping[str, str] = field(default_factory=dict)  # names on disk of modules that have another name there
    in_first_block: str | None = None  # a module that only the first block has, and that all blocks use


@dataclass(frozen=True)
class Anatomy:
    """The record of one family; module paths start at the base model (without a language-model head)."""

    blocks: str  # the path of the list of blocks
    taps: Mapping[Site, Tap]  # the module inside the block that each site of all blocks is read from
    partial: Mapping[Site, PartialTap] = field(default_factory=dict)  # the sites that only some blocks have
    # Module paths inside the block: `attention` and `mlp` act on the input of these branches; `attention_output` and
    # `mlp_output` act on their output, or with `post_norm` on its sum with the stream.
    norms: Mapping[str, str] = field(default_factory=dict)
    final_norm: str | None = None  # the norm after the last block
    embedding_norm: str | None = None  # the norm between the token embedding and the first block
    projects_embeddings: bool = False  # a matrix maps embeddings into the stream, also if they are as wide as it
    norm_kind: Literal["rms", "layer"] = "rms"
    norm_offset: float = 0.0  # the number that is added to a norm's stored scale before use
    positions: Literal[
        "rotary",
        "rotary, interleaved",
        "learned",
        "sinusoidal",
        "ALiBi",
        "learned and relative",
        "relative",
        "none",
        "unknown",
    ] = "rotary"
    layers_without_rotary: tuple[int, ...] = ()  # layers whose queries and keys have no positions
    unscaled_qk_norm: tuple[int, ...] = ()  # layers whose queries and keys are normalised without a learned scale
    unnormed_layers: tuple[int, ...] = ()  # layers whose attention reads the stream without the norm of the others
    dense_layers: tuple[int, ...] = ()  # layers with a single MLP, in a family whose other layers have experts
    block_of: Mapping[int, int] = field(default_factory=dict)  # the block of each layer, if layers share their blocks
    hybrid: str = ""  # in a hybrid, how its blocks differ from those with attention and an MLP, which some sites need
    layers_without_attention: tuple[int, ...] = ()  # layers of a hybrid with another mixer, or without one
    layers_without_mlp: tuple[int, ...] = ()  # layers of a hybrid that are attention or another mixer alone
    # What a block does to the stream after it added the MLP's output. Then resid_post is not resid_mid + mlp_out.
    after_mlp: str = ""
    no_head_site: str = ""  # the reason why the input of the output projection is no vector of one width for each head
    # By layer without keys and values of its own, the layer whose keys and values it uses.
    keys_of: Mapping[int, int] = field(default_factory=dict)
    keys_as_values: tuple[int, ...] = ()  # layers whose values are their keys, before the norm and the positions
    normed_values: bool = False  # a norm without a scale divides the values of each token and head
    wide_mlp_layers: tuple[int, ...] = ()  # layers whose MLP is wider than that of the others
    attention_scale: float = 1.0  # the factor of what attention adds, in blocks without the site `attn_out`
    post_norm: bool = False  # the norms follow the sum of stream and branch, and their output is the next stream
    causal: bool = True  # a token does not attend to later tokens
    encoder_alone: bool = False  # the family's models have a decoder too, which is not surveyed
    reserved_positions: int = 0  # the number of first rows of the position table that no token uses
    load_options: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments that the base model's class needs
    files: Files | None = None  # names on disk; None if they are not known
    no_circuits: str = ""  # the reason why QK and OV of a head cannot be computed, for a family without circuits
    no_words: str = ""  # the reason why the outputs of heads for single tokens cannot be computed from circuits
    known_by: Literal["record", "probe"] = "record"  # from the table of families, or from a probe of the loaded model

    @property
    def sites(self) -> list[Site]:
        """The sites that all blocks have, in the order of the stream."""
        return sorted(self.taps, key=list(Site).index)

    @property
    def absent(self) -> dict[Site, str]:
        """The sites that not all blocks have, with the reason; some blocks have those in `partial`."""
        reason = "only a model whose norms follow the sums has it; here resid_mid is the sum"
        if self.known_by == "probe":
            reason = "no module has it as input or output in every block, by the identities that it must obey"
        elif Site.RESID_MID not in self.taps and not self.hybrid:
            reason = "attention and MLP run in parallel, both read resid_pre"
        reasons: dict[Site, str] = {site: reason for site in BLOCK_SITES if site not in self.taps}
        if self.hybrid:
            return {site: old if site is Site.RESID_MID_SUM else self.hybrid for site, old in reasons.items()}
        if self.after_mlp:
            reasons[Site.MLP_OUT] = self.after_mlp
        if Site.HEAD_OUT in reasons:
            unknown = "the attention's output projection is not known for this model"
            reasons[Site.HEAD_OUT] = self.no_head_site or self.no_circuits or unknown
        return reasons

    def tap(self, site: Site) -> Tap:
        """Return where a site of all blocks, or of some, is read from."""
        return self.partial[site].tap if site in self.partial else self.taps[site]

    def layers_with(self, site: Site, layers: Sequence[int]) -> tuple[int, ...]:
        """Return those of some layers whose blocks have a site; all of them for `resid_final`."""
        return tuple(layer for layer in layers if site not in self.partial or layer in self.partial[site].layers)

    def kind_of(self, layer: int) -> tuple[bool, ...]:
        """Return what tells layers apart that have other modules."""
        kinds = (self.dense_layers, self.layers_without_attention, self.layers_without_mlp)
        return tuple(layer in some for some in (*kinds, self.keys_of, self.keys_as_values))

    def has_norm(self, layer: int, which: str) -> bool:
        """Return whether a block has the norm of this name in `norms`, which other blocks have."""
        alone = self.layers_without_mlp  # if there are any, no block has both
        if which == "attention":
            return layer not in self.unnormed_layers and (not alone or layer in alone)
        return which != "mlp" or layer not in alone

    @property
    def has_latents(self) -> bool:
        """Whether heads have multi-head latent attention: their keys and values go through latents."""
        return self.files is not None and self.files.latent

    @property
    def branches_add(self) -> bool:
        """Whether the differences of resid_pre, resid_mid and resid_post are what attention and the MLP add."""
        return not self.post_norm and not self.after_mlp

    @property
    def scale_of_attention(self) -> float:
        """The factor of attention's output before it is added to the stream."""
        tap = self.taps.get(Site.ATTN_OUT)
        return self.attention_scale if tap is None else tap.scale

    def attention_layers(self, n_layers: int) -> list[int]:
        """Return the layers that have attention: all layers, except in a hybrid."""
        return [layer for layer in range(n_layers) if layer not in self.layers_without_attention]

    @property
    def mlp_units(self) -> str | None:
        """The projection in the block that feeds the MLP's activation function.

        It is None if it is unknown, for experts, and for MLPs of several widths.

        This is its name in memory. If it contains gate and up, the function's input is its first half.
        """
        return (
            None
            if self.files is None or self.files.experts or self.layers_without_mlp or self.wide_mlp_layers
            else self.files.gate or self.files.up
        )


@dataclass(frozen=True)
class Dimensions:
    """The sizes of a model; `d_head` is the width of one head, which need not be d_model / n_heads.

    If layers differ in `n_kv_heads` or `d_head`, they are those of one layer, by default the first.
    """

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    context_length: int


# Rotary kinds whose factor extends the context; the stated length may or may not include the factor.
_STRETCHING = ("dynamic", "linear", "yarn")

# The training length of BLOOM; ALiBi itself has no limit.
_BLOOM_CONTEXT = 2048

_OF_ATTENTION = {"head_dim", "num_key_value_heads"}
"""The settings in which the layers of a model may differ."""

# The context of a model without a limit; XLNet states a negative length.
_NO_LIMIT = 2**31 - 1


def text_config_of(config: Any) -> Any:
    """Return the configuration of the text part of a multimodal model; for another model, the configuration itself.

    Raises:
        UnsupportedModelError: the configuration has several text parts.
    """
    try:
        return config.get_text_config()
    except ValueError as error:
        raise UnsupportedModelError(
            f"{config.model_type!r} has several text parts; a survey needs a model with one"
        ) from error


def dimensions_of(config: Any, reserved_positions: int = 0, layer: int = 0) -> Dimensions:
    """Return the sizes of a model from its configuration, with the keys and the width of the heads of one layer.

    Raises:
        UnsupportedModelError: the model has no attention heads, or several sizes of block.
    """
    text = text_config_of(config)
    if getattr(text, "is_heterogeneous", False):
        if not set(text.per_layer_attributes) <= _OF_ATTENTION:
            raise UnsupportedModelError(
                f"{config.model_type!r} has blocks of several sizes; a survey needs a model with one size"
            )
        text = text.per_layer_config[layer]
    # In latent attention, `head_dim` is the width of the part of keys with positions.
    width = getattr(text, "v_head_dim" if getattr(text, "kv_lora_rank", None) else "head_dim", None)
    try:
        heads, d_model, layers = text.num_attention_heads, text.hidden_size, text.num_hidden_layers
        return Dimensions(
            n_layers=int(layers),
            d_model=int(d_model),
            n_heads=int(heads),
            n_kv_heads=_kv_heads(text),
            d_head=width or d_model // heads,
            context_length=_context_length(text) - reserved_positions,
        )
    except (AttributeError, TypeError, ValueError, ArithmeticError) as error:
        raise UnsupportedModelError(
            f"{config.model_type!r} is not a supported transformer: its configuration lacks a size ({error})"
        ) from error


def head_widths_of(config: Any) -> tuple[int, ...] | None:
    """Return the width of the heads in each layer; None if all layers have one width."""
    text = text_config_of(config)
    if not getattr(text, "is_heterogeneous", False):
        return None
    widths = tuple(dimensions_of(config, layer=layer).d_head for layer in range(text.num_hidden_layers))
    return widths if len(set(widths)) > 1 else None


def _kv_heads(text: Any) -> int:
    # Falcon-7B sets multi_query; later Falcon models have groups and set new_decoder_architecture.
    if getattr(text, "multi_query", False) and not getattr(text, "new_decoder_architecture", False):
        return 1
    heads = getattr(text, "num_key_value_heads", None) or getattr(text, "num_kv_heads", None)
    return int(heads or text.num_attention_heads)


def _context_length(text: Any) -> int:
    stated = (getattr(text, name, None) for name in ("max_position_embeddings", "max_seq_len", "seq_length"))
    # In T5, all distances from this one on have one bias, so prompts of any length are read.
    unstated = _NO_LIMIT if hasattr(text, "relative_attention_max_distance") else _BLOOM_CONTEXT
    trained = next((int(length) for length in stated if length), unstated)
    if trained < 0:
        return _NO_LIMIT
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


def check_sites(anatomy: Anatomy, sites: Sequence[Site], layers: Sequence[int] | None = None) -> None:
    """Raise SiteNotFoundError for a site that the model does not have, with the reason and the sites that it has.

    With `layers`, also for a site that none of these layers has.
    """
    for site in sites:
        if site in anatomy.partial:
            if layers is not None and not anatomy.layers_with(site, layers):
                raise SiteNotFoundError(
                    f"capture.sites: none of capture.layers has {site!s}, because {anatomy.hybrid}; "
                    f"the layers with {site!s} are {', '.join(map(str, anatomy.partial[site].layers))}"
                )
        elif site in anatomy.absent:
            existing = ", ".join([*anatomy.sites, *(f"{one} (in some blocks)" for one in anatomy.partial)])
            raise SiteNotFoundError(
                f"capture.sites: this model has no {site!s}: {anatomy.absent[site]}; it has {existing}"
            )


def check_circuits(anatomy: Anatomy, family: str) -> None:
    """Raise UnsupportedModelError, with the reason, if QK or OV of a family's heads cannot be computed."""
    if anatomy.no_circuits:
        raise UnsupportedModelError(f"the heads of {family!r} have no circuits: {anatomy.no_circuits}")


def check_words(anatomy: Anatomy, family: str) -> None:
    """Raise UnsupportedModelError, with the reason, if the analysis `words` of a family cannot be computed."""
    check_circuits(anatomy, family)
    if anatomy.no_words:
        raise UnsupportedModelError(f"the analysis words of {family!r} cannot be computed: {anatomy.no_words}")


def check_next_token(anatomy: Anatomy, family: str) -> None:
    """Raise UnsupportedModelError if the models of a family predict no next token."""
    if not anatomy.causal:
        raise UnsupportedModelError(
            f"the analysis effects needs a next token, and {family!r} is an encoder; leave effects out"
        )


def check_layers(dimensions: Dimensions, layers: Sequence[int]) -> None:
    """Raise SiteNotFoundError for a layer that the model does not have."""
    outside = [layer for layer in layers if layer >= dimensions.n_layers]
    if outside:
        raise SiteNotFoundError(
            f"capture.layers: this model has no layer {outside[0]}; it has 0 to {dimensions.n_layers - 1}"
        )
