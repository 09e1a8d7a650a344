"""The spec of a survey: all options that can change a result. Options of execution are in `settings`."""

import hashlib
import json
from collections import Counter
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from theodolite.groups import ANALYSES, GROUPS
from theodolite.shard_bounds import ShardBounds
from theodolite.sites import BLOCK_SITES, STREAM_SITES, Site

NOUNS = "nouns"
"""The built-in prompt set of single words, which a survey can use without listing it in `prompts`."""

NOUN_TEMPLATE = "The next word is {prompt}"
"""The default template of the built-in nouns. Alone, a noun would be the first token, which is an attention sink."""

SENTENCES = "sentences"
"""The prompt set of `words.sentences`."""

TokenIds = tuple[int, ...]
"""The token ids of a prompt."""

BUILTIN_SETS = ("harmful", "harmless", NOUNS)

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,47}$")]
"""A name of a prompt set or a contrast, which paths, groups and labels contain."""


def _check_positions(positions: list[int]) -> list[int]:
    if any(position >= 0 for position in positions):
        raise ValueError("positions count from the end: -1 is the last token, -2 the one before it")
    return sorted(_check_unique(positions, minimum=1))


def _check_unique(values: list[Any], minimum: int = 0) -> list[Any]:
    if len(values) < minimum:
        raise ValueError("must not be empty")
    duplicate = next((value for value, count in Counter(values).items() if count > 1), None)
    if duplicate is not None:
        raise ValueError(f"{str(duplicate)[:60]} is listed twice; list each value once")
    return values


# Every field has a maximum, because a service accepts specs from others.
_Count = Annotated[int, Field(ge=1, le=10**9)]
_Index = Annotated[int, Field(ge=0, le=10**6)]
_Place = Annotated[str, Field(min_length=1, max_length=1_000)]
_Text = Annotated[str, Field(max_length=100_000)]
_PositionList = Annotated[list[Annotated[int, Field(ge=-(10**6))]], Field(max_length=1_000)]
_Positions = Annotated[_PositionList, AfterValidator(_check_positions)]
_Offsets = Annotated[
    list[_Index], Field(max_length=1_000), AfterValidator(lambda offsets: sorted({0, *_check_unique(offsets)}))
]
_Sentences = Annotated[
    list[Annotated[_Text, Field(min_length=1)]], Field(max_length=1_000), AfterValidator(_check_unique)
]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelSpec(_Model):
    """The model, its revision and its arithmetic."""

    id: _Place = Field(description="Hub id, local folder, path of a .gguf file, or alias (smollm2-135m-instruct).")
    revision: _Place | None = Field(
        None,
        description="Branch, tag or commit on the hub; the default is main. The run records the commit.",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Dtype of the model; auto is the dtype of the checkpoint, or float32 for a .gguf file."
    )
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2"] = Field(
        "auto", description="Attention kernel; auto is the kernel that transformers selects for the family."
    )
    trust_remote_code: bool = Field(
        False,
        description="Allow the model's own Python code to run. THEODOLITE_REMOTE_CODE_ALLOWED must list the model.",
    )
    weights: Literal["trained", "random"] = Field(
        "trained",
        description="random surveys an untrained twin: the same configuration and tokenizer, with the weights that "
        "transformers gives the model before training, from a fixed seed.",
    )

    @model_validator(mode="after")
    def _random_needs_a_known_class(self) -> "ModelSpec":
        if self.weights == "random" and self.trust_remote_code:
            raise ValueError(
                "weights is random, but trust_remote_code is true; random weights need a model class of transformers, "
                "so set trust_remote_code: false or weights: trained"
            )
        return self


class DrawSpec(_Model):
    """A random sample of a prompt set: the part `train` that scikit-learn's `train_test_split` returns."""

    test_size: float = Field(description="Fraction of the prompts that the sample leaves out.", gt=0, lt=1)
    random_state: int = Field(description="Seed of the shuffle.", ge=0, lt=2**32)


class PromptSetSpec(_Model):
    """The source of a prompt set, the selection of its prompts, and their tokenisation."""

    source: str = Field(
        description="builtin:NAME, file:PATH (.csv .jsonl .json .parquet .txt, relative to the spec) or hub:DATASET.",
        pattern=r"^(builtin|file|hub|words):.+$",
        max_length=1_000,
    )
    split: _Place = Field("train", description="Split of a hub dataset.")
    column: _Place | None = Field(
        None, description="Column that contains the prompts; required if the source has several columns."
    )
    where: dict[_Place, bool | int | float | _Text | None] = Field(
        default_factory=dict,
        description="Value by column; only rows that have all of these values are used.",
        max_length=100,
    )
    draw: DrawSpec | None = Field(None, description="Draw a random sample, after `where` and before `skip`.")
    # A set that skips nothing has no such field, so specs that are older than the field keep their digests.
    skip: _Index = Field(
        0, description="Number of prompts to leave out at the start, before `limit`.", exclude_if=lambda skip: skip == 0
    )
    limit: _Count | None = Field(None, description="Maximum number of prompts; the set uses the first ones.")
    template: _Text | None = Field(
        None,
        description="chat (the tokenizer's chat template), none (the prompt alone), or a text that contains {prompt}. "
        "The default is chat if the tokenizer has a chat template, else none. For builtin:nouns without a system "
        f"message it is {NOUN_TEMPLATE!r}, because models treat the first token of a sequence differently.",
    )
    system: _Text | None = Field(None, description="System message; requires the chat template.")
    positions: _PositionList | Literal["all"] | None = Field(
        None, description="Token positions of this set, instead of capture.positions; all captures every token."
    )

    @field_validator("source")
    @classmethod
    def _known_builtin(cls, source: str) -> str:
        kind, _, name = source.partition(":")
        if kind == "builtin" and name not in BUILTIN_SETS:
            raise ValueError(f"there is no built-in set {name!r}; allowed: {', '.join(BUILTIN_SETS)}")
        return source

    @field_validator("template")
    @classmethod
    def _known_template(cls, template: str | None) -> str | None:
        if template not in (None, "chat", "none") and "{prompt}" not in template:
            raise ValueError("allowed: chat, none, or a text that contains {prompt}")
        return template

    @field_validator("positions")
    @classmethod
    def _valid_positions(cls, positions: list[int] | str | None) -> list[int] | str | None:
        return _check_positions(positions) if isinstance(positions, list) else positions

    @model_validator(mode="after")
    def _system_needs_chat(self) -> "PromptSetSpec":
        if self.system is not None and self.template not in (None, "chat"):
            raise ValueError(
                f"system is given, but template is {self.template!r}; a system message needs template: chat"
            )
        return self


class CaptureSpec(_Model):
    """The activations to capture, and the sizes of batches and shards."""

    sites: list[Site] = Field(
        [Site.RESID_PRE, Site.RESID_MID],
        description="Sites to capture in each block. By default, those of resid_pre and resid_mid that the model has.",
        min_length=1,
    )
    final: bool = Field(
        True,
        description="Also capture resid_final, the stream after the last block. If false, blocks after the last of "
        "`layers` do not run, and `words` has no trajectories.",
    )
    layers: Literal["all"] | Annotated[list[_Index], Field(max_length=10_000)] = Field(
        "all", description="Layers to capture, from 0."
    )
    positions: _Positions = Field([-1], description="Token positions to capture, from the end; -1 is the last token.")
    keep: _Count | None = Field(
        None,
        description="Store the activations of this many prompts of each set, the first ones. The activations of the "
        "other prompts are reduced to moments while the model runs. By default all are stored. A set with `positions: "
        "all` is always stored whole.",
    )
    batch_tokens: _Count = Field(
        2048, description="Token budget of a batch, padding included; a longer prompt is a batch of its own."
    )
    shard_prompts: _Count = Field(
        64, description="Number of prompts in a shard; with `keep`, shards that are reduced may have more."
    )
    template_date: date = Field(date(2024, 7, 26), description="Date that chat templates print as today's date.")

    @field_validator("sites")
    @classmethod
    def _block_sites_once(cls, sites: list[Site]) -> list[Site]:
        if Site.RESID_FINAL in sites:
            raise ValueError(
                f"resid_final is captured unless capture.final is false; allowed: {', '.join(BLOCK_SITES)}"
            )
        if not set(sites) & set(STREAM_SITES):
            raise ValueError(f"head_out alone has no statistics along depth; add one of {', '.join(STREAM_SITES)}")
        return sorted(_check_unique(sites), key=list(Site).index)

    @field_validator("layers")
    @classmethod
    def _layers_once(cls, layers: str | list[int]) -> str | list[int]:
        return layers if isinstance(layers, str) else sorted(_check_unique(layers, minimum=1))

    @property
    def stream_sites(self) -> list[Site]:
        """The captured sites of blocks whose vectors have d_model features."""
        return [site for site in self.sites if site in STREAM_SITES]

    @property
    def all_sites(self) -> tuple[Site, ...]:
        """The captured sites, `resid_final` included."""
        return (*self.sites, Site.RESID_FINAL) if self.final else tuple(self.sites)


class ContrastSpec(_Model):
    """Two prompt sets; directions point from the negative to the positive set."""

    positive: _Place = Field(description="Name of the positive prompt set.")
    negative: _Place = Field(description="Name of the negative prompt set.")
    paired: bool | None = Field(
        None,
        description="Whether prompt i of one set matches prompt i of the other. The default is true for "
        "builtin:harmful and builtin:harmless with equal `where`, `draw`, `skip` and `limit`, else false.",
    )

    @property
    def sides(self) -> tuple[str, str]:
        """The names of both sets."""
        return self.positive, self.negative


class HeadsSpec(_Model):
    """Options of the decomposition of attention heads' circuits."""

    offsets: _Offsets = Field(
        [0],
        description="Offsets (query position minus key position) for W_QK of models with rotary positions. 0 is always "
        "included.",
    )
    fold_norm: bool = Field(False, description="Fold the norm that precedes attention into the attention weights.")
    vectors: _Index = Field(
        20,
        description="Number of leading singular vectors to store for each circuit. 0 stores none, and computes no "
        "copying scores and no `words`.",
    )
    composition: tuple[_Index, _Index] | None = Field(
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


class GramSpec(_Model):
    """Options of Gram matrices."""

    samples: int = Field(2048, description="Maximum number of prompts of a set in a Gram matrix.", ge=4, le=2048)


class WordsSpec(_Model):
    """Options of the analysis `words`, which decodes circuits and the residual stream into vocabulary tokens."""

    sentences: _Sentences = Field(
        ["To kill two birds with one stone"],
        description="Sentences of the trajectories (the paths of token vectors through the layers). They are captured "
        "as the prompt set `sentences`.",
    )
    tokens: _Count = Field(20, description="Number of vocabulary tokens in each decoded list.")
    nouns: Name = Field(
        NOUNS, description="Prompt set of single words for the tables of nouns; the default is the built-in set nouns."
    )
    umap: bool = Field(
        False, description="Also project trajectories onto a UMAP of normalised embeddings; requires umap-learn."
    )


_LEAST_SAMPLES = {"gram": 4, "separation": 10, "basis": 10}
"""The smallest number of stored prompts of a set with which an analysis has a meaning."""

_SENTENCES = PromptSetSpec(source=f"words:{SENTENCES}", template="none", positions="all")


class SurveySpec(_Model):
    """A survey: the model, the prompt sets, the activations to capture, and the analyses."""

    name: _Text | None = Field(None, description="Label of the survey; digests do not include it.")
    model: ModelSpec
    prompts: dict[Name, PromptSetSpec] = Field(
        description="Prompt sets by name; an empty mapping surveys only the weights.", max_length=1_000
    )
    capture: CaptureSpec = CaptureSpec()
    contrasts: dict[Name, ContrastSpec] = Field(
        default_factory=dict, description="Contrasts by name.", max_length=1_000
    )
    analyses: Annotated[list[_Place], Field(max_length=100)] | None = Field(
        None, description=f"Any of: {', '.join(ANALYSES)}; the default is all that the model and the prompts allow."
    )
    heads: HeadsSpec = HeadsSpec()
    words: WordsSpec = WordsSpec()
    gram: GramSpec = GramSpec()

    @field_validator("analyses")
    @classmethod
    def _existing_analyses(cls, analyses: list[str] | None) -> list[str] | None:
        unknown = [name for name in analyses or [] if name not in ANALYSES]
        if unknown:
            raise ValueError(
                f"{', '.join(map(repr, unknown))} does not exist in this version; allowed: {', '.join(ANALYSES)} "
                "(moments and directions are always computed)"
            )
        return None if analyses is None else sorted(_check_unique(analyses, minimum=1), key=ANALYSES.index)

    @model_validator(mode="after")
    def _parts_fit_together(self) -> "SurveySpec":
        if "words" in (self.analyses or []) and not self.heads.vectors:
            raise ValueError("analyses: 'words' needs singular vectors, but heads.vectors is 0; set it to 1 or more")
        need_prompts = [name for name in self.analyses or [] if "prompts" in GROUPS[name].needs]
        if need_prompts and not self.prompts:
            raise ValueError(f"analyses: {need_prompts[0]!r} needs prompts, but prompts is empty; add a prompt set")
        if "separation" in (self.analyses or []) and not self.contrasts:
            raise ValueError("analyses: 'separation' needs contrasts, but contrasts is empty; add a contrast")
        if self.prompts and all(prompt_set.positions == "all" for prompt_set in self.prompts.values()):
            raise ValueError(
                "prompts: every set has positions: all, but statistics need a list; set a list in at least one set"
            )
        if self.words.umap and not self.capture.final:
            raise ValueError("words.umap needs trajectories, which need resid_final, but capture.final is false")
        keep, named = self.capture.keep, self.analyses or []
        is_default = self.gram.samples == GramSpec().samples  # the default means all that are stored, at most so many
        if keep is not None and self.gram.samples > keep and not is_default:
            raise ValueError(
                f"gram.samples is {self.gram.samples}, but capture.keep is {keep}; Gram matrices need stored "
                f"activations, so set gram.samples to {keep} or less, or raise capture.keep"
            )
        few = [name for name, least in _LEAST_SAMPLES.items() if name in named and keep is not None and keep < least]
        if few:
            raise ValueError(
                f"analyses: {few[0]!r} needs the activations of at least {_LEAST_SAMPLES[few[0]]} prompts, but "
                f"capture.keep is {keep}"
            )
        if SENTENCES in self.prompts:
            raise ValueError(
                f"prompts.{SENTENCES}: this name is reserved for the set of words.sentences; rename the set"
            )
        own = [name for name, prompt_set in self.prompts.items() if prompt_set.source.startswith("words:")]
        if own:
            raise ValueError(
                f"prompts.{own[0]}.source: the kind `words` is reserved; list the sentences in words.sentences instead"
            )
        allowed = dict.fromkeys([*self.prompts, NOUNS])
        if self.words.nouns not in allowed:
            raise ValueError(f"words.nouns: there is no prompt set {self.words.nouns!r}; allowed: {', '.join(allowed)}")
        return self

    @model_validator(mode="after")
    def _contrasts_name_sets(self) -> "SurveySpec":
        for name, contrast in self.contrasts.items():
            for side in ("positive", "negative"):
                prompt_set = getattr(contrast, side)
                if prompt_set not in self.prompts:
                    raise ValueError(
                        f"contrasts.{name}.{side}: there is no prompt set {prompt_set!r}; "
                        f"allowed: {', '.join(self.prompts)}"
                    )
                if self.prompts[prompt_set].positions == "all":
                    raise ValueError(
                        f"contrasts.{name}.{side}: {prompt_set!r} has positions: all, which contrasts cannot use; "
                        "set a list of positions"
                    )
            positions = [self.prompts[side].positions or self.capture.positions for side in contrast.sides]
            if not set(positions[0]) & set(positions[1]):
                raise ValueError(
                    f"contrasts.{name}: {contrast.positive} has positions {positions[0]} and {contrast.negative} "
                    f"{positions[1]}; a contrast needs a common position"
                )
        return self

    @property
    def sets(self) -> dict[str, PromptSetSpec]:
        """The prompt sets to capture: `prompts`, and the set `sentences` for the trajectories of `words.sentences`.

        Trajectories need prompts, sentences and `resid_final`.
        """
        has_sentences = bool(self.prompts) and bool(self.words.sentences) and self.capture.final
        return {**self.prompts, **({SENTENCES: _SENTENCES} if has_sentences else {})}

    def bounds(self, prompt_set: str, n_samples: int) -> ShardBounds:
        """Return the bounds of the shards of a set; sets with `positions: all` have no moments and are stored whole."""
        keep = None if self.sets[prompt_set].positions == "all" else self.capture.keep
        n_kept = n_samples if keep is None else min(keep, n_samples)
        return ShardBounds(n_samples, n_kept, self.capture.shard_prompts)

    def is_paired(self, contrast: str) -> bool:
        """Return `paired` of a contrast, or its default: true for the built-in pair with equal selections."""
        chosen = self.contrasts[contrast]
        if chosen.paired is not None:
            return chosen.paired
        sets = [self.prompts[chosen.positive], self.prompts[chosen.negative]]
        are_builtin_pair = {prompt_set.source for prompt_set in sets} == {"builtin:harmful", "builtin:harmless"}
        selections = [(each.where, each.draw, each.skip, each.limit) for each in sets]
        return are_builtin_pair and selections[0] == selections[1]

    def resolved_contrasts(self) -> dict[str, dict[str, Any]]:
        """Return `positive`, `negative` and `paired` of each contrast."""
        return {name: {**dict(contrast), "paired": self.is_paired(name)} for name, contrast in self.contrasts.items()}

    def canonical(self) -> str:
        """Return the canonical JSON of the spec without its label; equivalent specs have the same text."""
        content = self.model_dump(mode="json", exclude={"name"})
        if self.model.weights == "trained":  # newer than the first survey jobs, whose ids stay the same
            del content["model"]["weights"]
        return canonical_json(content)

    def digest(self) -> str:
        """Return the SHA-256 of the canonical form, in hex."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and without spaces; equal values have the same text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest_of(value: Any) -> str:
    """Return the SHA-256 of a value's canonical JSON, in hex."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
