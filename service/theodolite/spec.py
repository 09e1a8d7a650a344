"""SurveySpec: everything that can change a number, and nothing else. Where and how it runs is in settings."""

import hashlib
import json
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from theodolite.groups import ANALYSES, GROUPS
from theodolite.sites import BLOCK_SITES, Site

NOUNS = "nouns"
"""The built-in set of single words, which any survey may use without naming it."""

SENTENCES = "sentences"
"""The prompt set that `words.sentences` become."""

TokenIds = tuple[int, ...]
"""What a prompt becomes."""

BUILTIN_SETS = ("harmful", "harmless", NOUNS)

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,47}$")]
"""Names of sets and contrasts become paths, groups and labels."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelSpec(_Model):
    """Which model, and how its arithmetic is done."""

    id: str = Field(description="Hub id, local folder, path to a .gguf file, or an alias.", min_length=1)
    revision: str | None = Field(
        None, description="Hub revision; resolved to a commit when the run is created, and pinned."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="auto is the checkpoint's own; float32 for GGUF."
    )
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2"] = Field(
        "auto", description="The attention kernel; auto is what transformers selects for the family."
    )
    trust_remote_code: bool = Field(
        False, description="Run the checkpoint's own code; the deployment must allow the model by name."
    )


class DrawSpec(_Model):
    """A random draw: the train part of scikit-learn's `train_test_split`."""

    test_size: float = Field(description="Fraction left out.", gt=0, lt=1)
    random_state: int = Field(description="Seed of the shuffle.", ge=0)


class PromptSetSpec(_Model):
    """Where a set of prompts comes from, and how a prompt becomes tokens."""

    source: str = Field(
        description="builtin:NAME, file:PATH (.csv .jsonl .json .parquet .txt, relative to the spec) or hub:DATASET.",
        pattern=r"^(builtin|file|hub|words):.+$",
    )
    split: str = Field("train", description="Split of a hub dataset.")
    column: str | None = Field(None, description="Column that holds the prompt; needed where there is more than one.")
    where: dict[str, bool | int | float | str | None] = Field(
        default_factory=dict, description="Keep rows whose columns have exactly these values."
    )
    draw: DrawSpec | None = Field(None, description="Shuffle and draw, after `where` and before `limit`.")
    limit: int | None = Field(None, description="Keep the first so many prompts.", ge=1)
    template: str | None = Field(
        None,
        description="chat (default where the tokenizer has a chat template), none, or a text with {prompt} in it.",
    )
    system: str | None = Field(None, description="System message; needs the chat template.")
    positions: list[int] | Literal["all"] | None = Field(
        None, description="Overrides capture.positions; all keeps every token."
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
            raise ValueError(f"system is given, which needs template: chat, not {self.template!r}")
        return self


class CaptureSpec(_Model):
    """What is kept of each forward pass, and in which units of work."""

    sites: list[Site] = Field(
        [Site.RESID_PRE, Site.RESID_MID],
        description="Sites in each block; resid_final always comes along.",
        min_length=1,
    )
    layers: Literal["all"] | list[Annotated[int, Field(ge=0)]] = Field("all", description="Blocks, from 0.")
    positions: list[int] = Field([-1], description="Token positions from the end; -1 is the last.")
    batch_tokens: int = Field(2048, description="Token budget of one batch, padding included.", ge=1)
    shard_prompts: int = Field(64, description="Prompts in one shard.", ge=1)
    template_date: date = Field(date(2024, 7, 26), description="What a chat template sees as today.")

    @field_validator("sites")
    @classmethod
    def _block_sites_once(cls, sites: list[Site]) -> list[Site]:
        if Site.RESID_FINAL in sites:
            raise ValueError(f"resid_final always comes along; name sites of the blocks: {', '.join(BLOCK_SITES)}")
        return sorted(_check_unique(sites), key=list(Site).index)

    @field_validator("layers")
    @classmethod
    def _layers_once(cls, layers: str | list[int]) -> str | list[int]:
        return layers if isinstance(layers, str) else sorted(_check_unique(layers, minimum=1))

    @field_validator("positions")
    @classmethod
    def _valid_positions(cls, positions: list[int]) -> list[int]:
        return _check_positions(positions)


class ContrastSpec(_Model):
    """Two prompt sets; directions point from the negative to the positive."""

    positive: str = Field(description="Name of a prompt set.")
    negative: str = Field(description="Name of a prompt set.")
    paired: bool | None = Field(
        None,
        description="Prompt i of one set matches prompt i of the other; the built-in pair is by default.",
    )

    @property
    def sides(self) -> tuple[str, str]:
        """The names of both sets."""
        return self.positive, self.negative


class HeadsSpec(_Model):
    """How the circuits of attention heads are decomposed."""

    offsets: list[Annotated[int, Field(ge=0)]] = Field(
        [0], description="Query position minus key position, of W_QK under rotary positions; 0 always comes along."
    )
    fold_norm: bool = Field(False, description="Fold the norm that attention reads through into its weights.")
    vectors: int = Field(20, description="Leading singular vectors to keep of each side; 0 for none.", ge=0)
    composition: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]] | None = Field(
        None, description="First and last layer whose heads are compared in pairs: Q-, K- and V-composition."
    )

    @field_validator("offsets")
    @classmethod
    def _with_zero(cls, offsets: list[int]) -> list[int]:
        return sorted({0, *_check_unique(offsets)})

    @field_validator("composition")
    @classmethod
    def _in_order(cls, layers: tuple[int, int] | None) -> tuple[int, int] | None:
        if layers is not None and layers[0] >= layers[1]:
            raise ValueError("the first layer must come before the last: heads compose with those of later layers")
        return layers


class GramSpec(_Model):
    """How Gram matrices are made."""

    samples: int = Field(2048, description="Prompts of a set that a Gram matrix is made of, at most.", ge=4, le=2048)


class WordsSpec(_Model):
    """What is said of circuits and of the stream in words of the vocabulary."""

    sentences: list[Annotated[str, Field(min_length=1)]] = Field(
        ["To kill two birds with one stone"],
        description="Sentences whose tokens are followed through the model; captured as the prompt set `sentences`.",
    )
    tokens: int = Field(20, description="How many tokens a list holds.", ge=1)
    nouns: Name = Field(NOUNS, description="A prompt set of single words, or the built-in nouns.")
    umap: bool = Field(False, description="Also place trajectories in a UMAP of the embeddings; needs umap-learn.")

    @field_validator("sentences")
    @classmethod
    def _sentences_once(cls, sentences: list[str]) -> list[str]:
        return _check_unique(sentences)


_SENTENCES = PromptSetSpec(source=f"words:{SENTENCES}", template="none", positions="all")


class SurveySpec(_Model):
    """A survey: a model, prompt sets, what to capture and what to compute from it."""

    name: str | None = Field(None, description="A label; hashed nowhere.")
    model: ModelSpec
    prompts: dict[Name, PromptSetSpec] = Field(
        description="Prompt sets by name; an empty mapping surveys the weights alone."
    )
    capture: CaptureSpec = CaptureSpec()
    contrasts: dict[Name, ContrastSpec] = Field(default_factory=dict, description="Contrasts by name.")
    analyses: list[str] | None = Field(
        None, description=f"Any of: {', '.join(ANALYSES)}; by default all that the model and the prompts allow."
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
                f"{', '.join(map(repr, unknown))} does not exist in this version; allowed: {', '.join(ANALYSES)}; "
                "moments and directions come along with any prompts"
            )
        return None if analyses is None else sorted(_check_unique(analyses, minimum=1), key=ANALYSES.index)

    @model_validator(mode="after")
    def _prompts_where_needed(self) -> "SurveySpec":
        if "words" in (self.analyses or []) and not self.heads.vectors:
            raise ValueError("analyses: 'words' says singular vectors in tokens, and heads.vectors is 0")
        needy = [name for name in self.analyses or [] if "prompts" in GROUPS[name].needs]
        if needy and not self.prompts:
            raise ValueError(f"analyses: {needy[0]!r} needs prompts, and there are none")
        if "separation" in (self.analyses or []) and not self.contrasts:
            raise ValueError("analyses: 'separation' is of contrasts, and there are none")
        if self.prompts and all(prompt_set.positions == "all" for prompt_set in self.prompts.values()):
            raise ValueError("prompts: every set keeps all positions, and statistics need a set with a list of them")
        if SENTENCES in self.prompts:
            raise ValueError(f"prompts.{SENTENCES}: the set of this name is made of words.sentences; name it otherwise")
        own = [name for name, prompt_set in self.prompts.items() if prompt_set.source.startswith("words:")]
        if own:
            raise ValueError(
                f"prompts.{own[0]}.source: words.sentences come along by themselves, in a set of their own"
            )
        return self

    @model_validator(mode="after")
    def _nouns_exist(self) -> "SurveySpec":
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
                        f"contrasts.{name}.{side}: {prompt_set!r} keeps all positions, which feed trajectories, "
                        "not contrasts; give it a list of positions"
                    )
            kept = [self.prompts[side].positions or self.capture.positions for side in contrast.sides]
            if not set(kept[0]) & set(kept[1]):
                raise ValueError(
                    f"contrasts.{name}: {contrast.positive} keeps positions {kept[0]} and {contrast.negative} "
                    f"{kept[1]}; they need one in common"
                )
        return self

    @property
    def sets(self) -> dict[str, PromptSetSpec]:
        """The prompt sets that are captured: those of `prompts`, and the sentences of `words` where there are any."""
        follows = bool(self.prompts) and bool(self.words.sentences)
        return {**self.prompts, **({SENTENCES: _SENTENCES} if follows else {})}

    def is_paired(self, contrast: str) -> bool:
        """Return whether prompt i of one set matches prompt i of the other, in the spec's or the default way."""
        chosen = self.contrasts[contrast]
        if chosen.paired is not None:
            return chosen.paired
        sets = [self.prompts[chosen.positive], self.prompts[chosen.negative]]
        are_the_pair = {prompt_set.source for prompt_set in sets} == {"builtin:harmful", "builtin:harmless"}
        selections = [(prompt_set.where, prompt_set.draw, prompt_set.limit) for prompt_set in sets]
        return are_the_pair and selections[0] == selections[1]

    def resolved_contrasts(self) -> dict[str, dict[str, Any]]:
        """Return `positive`, `negative` and `paired` of each contrast."""
        return {
            name: {"positive": contrast.positive, "negative": contrast.negative, "paired": self.is_paired(name)}
            for name, contrast in self.contrasts.items()
        }

    def canonical(self) -> str:
        """Return the one JSON text that all spellings of this survey share (the label left out)."""
        return canonical_json(self.model_dump(mode="json", exclude={"name"}))

    def digest(self) -> str:
        """Return the SHA-256 of the canonical form, in hex."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and no spaces, so that equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest_of(value: Any) -> str:
    """Return the SHA-256 of a value's canonical JSON, in hex."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def _check_positions(positions: list[int]) -> list[int]:
    if any(position >= 0 for position in positions):
        raise ValueError("positions count from the end: -1 is the last token, -2 the one before it")
    return sorted(_check_unique(positions, minimum=1))


def _check_unique(values: list[Any], minimum: int = 0) -> list[Any]:
    if len(values) < minimum:
        raise ValueError("must not be empty")
    if len(set(values)) != len(values):
        raise ValueError("lists something twice")
    return values
