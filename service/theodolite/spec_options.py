"""The options of analyses in a spec."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from theodolite.groups.effects.record import CHANGEABLE
from theodolite.prompt_values import Text
from theodolite.sites import Site
from theodolite.spec_parts import NOUNS, Count, Index, Name, Part, check_unique

_Offsets = Annotated[
    list[Index], Field(max_length=1_000), AfterValidator(lambda offsets: sorted({0, *check_unique(offsets)}))
]
_Sentences = Annotated[
    list[Annotated[Text, Field(min_length=1)]], Field(max_length=1_000), AfterValidator(check_unique)
]


class HeadsSpec(Part):
    """Options of the decomposition of attention heads' circuits."""

    offsets: _Offsets = Field(
        [0],
        description="Offsets (query position minus key position) for W_QK of models with rotary positions, and for the "
        "rotary part in multi-head latent attention. 0 is always included.",
    )
    fold_norm: bool = Field(
        False, description="Multiply the attention weights by the scale of the norm before attention (fold the norm)."
    )
    vectors: Index = Field(
        20,
        description="Number of leading singular vectors to store for each circuit. 0 stores none, and computes no "
        "copying scores and no `words`.",
    )
    composition: tuple[Index, Index] | None = Field(
        None,
        description="First and last layer: compute the Q-, K- and V-composition of heads in different layers, from the "
        "first to the last.",
    )

    @field_validator("composition")
    @classmethod
    def _in_order(cls, layers: tuple[int, int] | None) -> tuple[int, int] | None:
        if layers is not None and layers[0] >= layers[1]:
            raise ValueError(
                "the first layer must come before the last, because heads compose with heads of later layers"
            )
        return layers


class GramSpec(Part):
    """Options of Gram matrices."""

    samples: int = Field(2048, description="Maximum number of prompts of a set in a Gram matrix.", ge=4, le=2048)


class ProbesSpec(Part):
    """Options of the analysis `probes`, which fits logistic and linear discriminant probes."""

    draws: Annotated[int, Field(ge=19, le=200)] = Field(
        99,
        description="Number of permutations that test the logistic probe, whose ridge is chosen anew for each; the "
        "other probes have 200. The smallest p is 1 over this number plus 1.",
    )


class EffectsSpec(Part):
    """Options of the analysis `effects`, which changes the last token's state and measures the next token."""

    prompts: Annotated[int, Field(ge=10, le=512)] = Field(
        12,
        description="Maximum number of prompts of each side of a contrast, evenly spaced over its prompts. In a paired "
        "contrast they are pairs. Four times as many take four times as long, and halve the intervals.",
    )
    sites: list[Site] | None = Field(
        None,
        description="Sites at which states are changed, among those of capture.sites in the residual stream; the "
        "default is resid_pre, or the first captured one.",
        min_length=1,
    )
    layers: Literal["all"] | Annotated[list[Index], Field(max_length=10_000)] | None = Field(
        None,
        description="Layers at which states are changed, among the captured ones: a list, or all; the default is six "
        "that are evenly spaced and end with the last one. All layers say from which one on a direction is used.",
    )
    patch: Literal["auto", "pair", "mean"] = Field(
        "auto",
        description="What a patch gives to a prompt: the state of its pair, or the mean state of the other set. The "
        "default is pair if the contrast is paired, else mean.",
    )
    doses: Annotated[
        list[Annotated[float, Field(ge=-1e6, le=1e6)]],
        Field(max_length=100),
        AfterValidator(lambda doses: sorted({-1.0, 1.0, *check_unique(doses)})),
    ] = Field(
        [-2.0, -1.0, -0.5, 0.5, 1.0, 2.0],
        description="Factors on the difference of the means (positive minus negative) that is added to the state. -1 "
        "and 1 are always included.",
    )
    controls: Annotated[int, Field(ge=19, le=200)] = Field(
        19,
        description="Number of directions of each control. The smallest p is 1 over this number plus 1, so 19 is the "
        "least number that can give a p of 0.05; more give a smaller one.",
    )
    parts: bool = Field(
        True,
        description="Also patch the outputs of each head, each attention, each MLP, and each block (attention and MLP "
        "together) with those of the prompt's pair. Contrasts without pairs have no such patches.",
    )
    tokens: dict[Name, Annotated[list[Annotated[Text, Field(min_length=1)]], Field(max_length=1_000)]] = Field(
        default_factory=dict,
        description="Two groups of next tokens by name; the log-odds are those of the first group against the second. "
        "Each text must be one token. The default groups are refusal and answer: words with which chat models begin a "
        "refusal, and an answer.",
    )

    @field_validator("sites")
    @classmethod
    def _stream_sites_once(cls, sites: list[Site] | None) -> list[Site] | None:
        wrong = [site for site in sites or [] if site not in CHANGEABLE]
        if wrong:
            raise ValueError(f"{wrong[0]} is not a state of the residual stream; allowed: {', '.join(CHANGEABLE)}")
        return None if sites is None else sorted(check_unique(sites), key=list(Site).index)

    @field_validator("layers")
    @classmethod
    def _layers_once(cls, layers: str | list[int] | None) -> str | list[int] | None:
        return sorted(check_unique(layers, minimum=1)) if isinstance(layers, list) else layers

    @field_validator("tokens")
    @classmethod
    def _two_groups(cls, tokens: dict[str, list[str]]) -> dict[str, list[str]]:
        if len(tokens) not in (0, 2):
            raise ValueError(f"must have two groups, or none for the default groups; there are {len(tokens)}")
        for name, texts in tokens.items():
            if not texts:
                raise ValueError(f"the group {name!r} is empty; list at least one text")
        both = set.intersection(*map(set, tokens.values())) if tokens else set()
        if both:
            raise ValueError(f"{min(both)!r} is in both groups; list each text in one group")
        return tokens


class WordsSpec(Part):
    """Options of the analysis `words`, which decodes circuits and the residual stream into vocabulary tokens."""

    sentences: _Sentences = Field(
        ["To kill two birds with one stone"],
        description="Sentences of the trajectories (the paths of token vectors through the layers). They are captured "
        "as the prompt set `sentences`.",
    )
    tokens: Count = Field(20, description="Number of vocabulary tokens in each decoded list.")
    nouns: Name = Field(
        NOUNS, description="Prompt set of single words for the tables of nouns; the default is the built-in set nouns."
    )
