"""The parts of a spec: the model, the prompts, the capture and the contrasts."""

import math
import re
from collections import Counter
from collections.abc import Iterable
from datetime import date
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

from theodolite.errors import short
from theodolite.prompt_values import ARG_NAME, InlinePrompt, TemplateArgs, Text
from theodolite.sites import BLOCK_SITES, STREAM_SITES, Site

NOUNS = "nouns"
"""The built-in prompt set of single words, which a survey can use without listing it in `prompts`."""

NOUN_TEMPLATE = "The next word is {prompt}"
"""The default template of the built-in nouns. Alone, a noun would be the first token, which is an attention sink."""

SENTENCES = "sentences"
"""The prompt set of `words.sentences`."""

BUILTIN_SETS = ("harmful", "harmless", "everyday", NOUNS)

_TEXT_TYPES = ("csv", "tsv", "jsonl", "ndjson", "json", "txt")

FILE_TYPES = (*_TEXT_TYPES, "parquet", *(f"{kind}.gz" for kind in _TEXT_TYPES))
"""The types of prompt files, which are the ends of their names."""

UPLOAD = re.compile(rf"[0-9a-f]{{64}}\.({'|'.join(map(re.escape, FILE_TYPES))})")
"""The name of an upload: the SHA-256 of its content, and its type."""

_DATASET = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)

_NAME = r"^[a-z][a-z0-9_-]{0,47}$"
LABEL = r"^(-[1-9]\d{0,6}|[a-z][a-z0-9_-]{0,47})$"
"""The pattern of the label of a position as a text."""

_SOURCE = r"^((builtin|file|hub|words|upload):.+|inline)$"

PATTERNS = {
    _NAME: "a name begins with a letter from a to z; allowed: up to 48 characters from a-z, 0-9, _ and -",
    LABEL: "allowed: a number from the end, such as -1, or the name of a position",
    ARG_NAME: "the name of a variable has letters, digits and _, and begins with no digit",
    _SOURCE: "allowed: builtin:NAME, file:PATH, hub:DATASET, upload:NAME, inline",
}
"""The rule that each pattern of a field checks, in words."""

Name = Annotated[str, Field(pattern=_NAME)]
"""A name of a prompt set or a contrast, which paths, groups and labels contain."""


def file_type(name: str) -> str | None:
    """Return the type of a prompt file by its name, one of FILE_TYPES, or None."""
    return next((kind for kind in FILE_TYPES if name.lower().endswith(f".{kind}")), None)


def _check_positions(positions: "list[int | NamedPosition]") -> "list[int | NamedPosition]":
    counted = [position for position in positions if isinstance(position, int)]
    named = [position for position in positions if not isinstance(position, int)]
    if any(position >= 0 for position in counted):
        raise ValueError(
            "positions count from the end: -1 is the last token, -2 the one before it; from the start, give a name and "
            "first: 0"
        )
    check_unique([*counted, *(one.name for one in named)], minimum=1)
    return [*named, *sorted(counted)]


def check_unique(values: list[Any], minimum: int = 0) -> list[Any]:
    """Return the values; raise ValueError if there are fewer than the minimum, or if two are equal."""
    if len(values) < minimum:
        raise ValueError("must not be empty")
    duplicate = next((value for value, count in Counter(values).items() if count > 1), None)
    if duplicate is not None:
        raise ValueError(f"{str(duplicate)[:60]} is listed twice; list each value once")
    return values


# Every field has a maximum, because a service accepts specs from others.
Count = Annotated[int, Field(ge=1, le=10**9)]
Index = Annotated[int, Field(ge=0, le=10**6)]
Place = Annotated[str, Field(min_length=1, max_length=1_000)]


class Part(BaseModel):
    """A part of a spec: unknown fields are errors, and fields never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NamedPosition(Part):
    """A position that is found in the text of each prompt: a token of a message or of a text in it, or their mean."""

    name: Name = Field(description="Name of the position, which results have as its label.")
    role: Literal["system", "user", "assistant"] = Field(
        "user", description="Role of the message. A prompt that is a text is the message of a user."
    )
    turn: int | None = Field(
        None,
        description="Number of the message among those of its role: 0 is the first, -1 the last; required if a prompt "
        "has several, unless only one of them has `text`.",
        ge=-(10**6),
        le=10**6,
    )
    text: Text | None = Field(
        None, description="A text that the message has once; by default, the whole message is meant.", min_length=1
    )
    token: Literal["first", "last", "mean"] | None = Field(
        None,
        description="The first or the last token of the message or of `text`, or the mean of the activations of all "
        "its tokens; the default is last.",
    )
    first: Index | None = Field(
        None,
        description="Number of the token from the start of the message or of `text`, in place of `token`; 0 is the "
        "first.",
    )

    @model_validator(mode="before")
    @classmethod
    def _one_spelling(cls, given: Any) -> Any:
        """Return the options so that positions that mean the same are equal, also in the digest of a run."""
        if not isinstance(given, dict) or given.get("token") is not None:
            return given
        if given.get("first") is None:
            return {**given, "token": "last"}
        return {**given, "token": "first", "first": None} if given["first"] == 0 else given

    @model_validator(mode="after")
    def _one_token(self) -> "NamedPosition":
        if self.first is not None and self.token is not None:
            raise ValueError("token and first are given; leave one out")
        return self

    @property
    def meaning(self) -> str:
        """What is measured, in words."""
        token = f"token {self.first} (from 0)" if self.first is not None else f"the {self.token} token"
        which = "the mean over the tokens" if self.token == "mean" else token
        turn = "" if self.turn is None else f", turn {self.turn}"
        return f"{which} of {'the message' if self.text is None else short(self.text)} (role {self.role}{turn})"

    def within(self, start: int, stop: int) -> tuple[int, int]:
        """Return the token or tokens to measure, half-open, of those from `start` to `stop`."""
        if self.token == "mean":
            return start, stop
        at = stop - 1 if self.token == "last" else start + (self.first or 0)
        return at, at + 1


# A tag with a bracket is left out of the field that an error names.
_Position = Annotated[
    Annotated[int, Field(ge=-(10**6)), Tag("[number]")] | Annotated[NamedPosition, Tag("[name]")],
    Discriminator(lambda value: "[name]" if isinstance(value, dict | NamedPosition) else "[number]"),
]
_PositionList = Annotated[list[_Position], Field(max_length=1_000)]
Positions = Annotated[_PositionList, AfterValidator(_check_positions)]

Label = int | str
"""The label of a position: counted from the end, or in runs with named positions a name or such a number as text."""


def counted(label: Label) -> int | None:
    """Return a position that is counted from the end as a number; None for a named one."""
    return int(label) if str(label).removeprefix("-").isdecimal() else None


def same_labels(given: Iterable[Label], known: Iterable[Label]) -> list[Label]:
    """Return labels of positions as a run has them: it accepts `-1` as a number and as a text."""
    texts = {str(label): label for label in known}
    return [texts.get(str(label), counted(label) or label) for label in given]


def in_order(labels: Iterable[Label]) -> list[Label]:
    """Return labels of positions once each: named ones as they come, then those from the end, ascending."""
    return sorted(dict.fromkeys(labels), key=lambda label: counted(label) or -math.inf)


class ModelSpec(Part):
    """The model, its revision and its arithmetic."""

    id: Place = Field(
        description="Hub id, local folder, path of a .gguf file, or alias (smollm2-135m-instruct). The id of an "
        "adapter stands for the adapter and the base that its adapter_config.json names."
    )
    revision: Place | None = Field(
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
    template: Place | None = Field(
        None,
        description="Name of the chat template, if the model's files have several; the default is the one named "
        "default.",
    )
    adapter: Place | None = Field(
        None,
        description="Hub id or local folder of an adapter of peft (LoRA, DoRA); it is merged into the model.",
    )
    adapter_revision: Place | None = Field(
        None,
        description="Branch, tag or commit of the adapter on the hub; the default is main. The run records the commit.",
    )

    @model_validator(mode="after")
    def _adapter_is_merged_into_trained_weights(self) -> "ModelSpec":
        if self.adapter is None and self.adapter_revision is not None:
            raise ValueError("adapter_revision is given without adapter; give the adapter, or leave it out")
        if self.adapter is not None and self.weights == "random":
            raise ValueError("weights is random, but an adapter is given, whose weights are trained; leave one out")
        if self.adapter is not None and self.trust_remote_code:
            raise ValueError(
                "trust_remote_code is true, but an adapter is given; it is merged only into model classes of "
                "transformers, so set trust_remote_code: false"
            )
        return self

    @model_validator(mode="after")
    def _random_needs_a_known_class(self) -> "ModelSpec":
        if self.weights == "random" and self.trust_remote_code:
            raise ValueError(
                "weights is random, but trust_remote_code is true; random weights need a model class of transformers, "
                "so set trust_remote_code: false or weights: trained"
            )
        return self


class DrawSpec(Part):
    """A random sample of a prompt set: the part `train` that scikit-learn's `train_test_split` returns."""

    test_size: float = Field(description="Fraction of the prompts that the sample leaves out.", gt=0, lt=1)
    random_state: int = Field(description="Seed of the shuffle.", ge=0, lt=2**32)


_CHAT_OPTIONS = {
    "system": "a system message",
    "template_args": "a variable of the chat template",
    "prefill": "the beginning of an answer",
}


class PromptSetSpec(Part):
    """The source of a prompt set, the selection of its prompts, and their tokenisation."""

    source: str = Field(
        description="builtin:NAME, file:PATH (.csv .tsv .jsonl .ndjson .json .txt, each also as .gz, .parquet, or a "
        "folder of save_to_disk; relative to the spec), hub:DATASET, inline (the prompts are in `texts`), or "
        "upload:NAME (a file in the store; the service returns its name).",
        pattern=_SOURCE,
        max_length=1_000,
    )
    texts: list[InlinePrompt] = Field(
        default_factory=list,
        description="The prompts, if the source is inline: texts, or conversations (lists of {role, content}).",
        max_length=10_000,
    )
    split: Place = Field("train", description="Split of a hub dataset, or of a folder of save_to_disk.")
    config: Place | None = Field(
        None,
        description="Configuration of a hub dataset; required if it has several and none is its default.",
    )
    revision: Place | None = Field(
        None,
        description="Branch, tag or commit of a hub dataset; the default is main. The run records the commit.",
    )
    data_files: list[Place] = Field(
        default_factory=list,
        description="Files of a hub dataset to read, as paths or patterns in its repository; they are the split train.",
        max_length=1_000,
    )
    column: Place | None = Field(
        None,
        description="Column that contains the prompts; required if the source has several columns, or if it is a .csv "
        "or .tsv file whose only column has an uncommon name.",
    )
    where: dict[Place, bool | int | float | Text | None] = Field(
        default_factory=dict,
        description="Value by column; only rows that have all of these values are used.",
        max_length=100,
    )
    draw: DrawSpec | None = Field(None, description="Draw a random sample, after `where` and before `skip`.")
    skip: Index = Field(0, description="Number of prompts to leave out at the start, before `limit`.")
    limit: Count | None = Field(
        None,
        description="Maximum number of prompts; the set uses the first ones. Of a hub dataset, if `draw` is not given "
        "and `split` is whole, only the rows up to the last of these prompts are read.",
    )
    too_long: Literal["refuse", "skip", "truncate_left", "truncate_right"] = Field(
        "refuse",
        description="What happens to a prompt with more tokens than the model's context, after `limit`: the survey is "
        "refused; skip leaves the prompt out, with its partners in paired contrasts; truncate_left and truncate_right "
        "cut the prompt's own text at this end, at a token, until it fits, and leave the template whole.",
    )
    template: Text | None = Field(
        None,
        description="chat (the tokenizer's chat template), none (the prompt alone), or a text that contains {prompt}. "
        "The default is chat if the tokenizer has a chat template, else none. For builtin:nouns without a system "
        f"message it is {NOUN_TEMPLATE!r}, because models treat the first token of a sequence differently.",
    )
    system: Text | None = Field(None, description="System message; requires the chat template.")
    template_args: TemplateArgs = Field(
        default_factory=dict,
        description="Variables of the chat template by name, for example {enable_thinking: false}. The template must "
        "read each of them.",
    )
    prefill: Text | None = Field(
        None,
        description="Text that follows the chat template's generation prompt: the beginning of the answer. Its special "
        "tokens are encoded as special tokens.",
        min_length=1,
    )
    special_tokens: Literal["text", "allow"] = Field(
        "text",
        description="text encodes special tokens that a prompt spells (such as <|im_end|>) as plain text; allow "
        "encodes them as special tokens. Those of the template are always special.",
    )
    positions: _PositionList | Literal["all"] | None = Field(
        None, description="Token positions of this set, instead of capture.positions; all captures every token."
    )

    @field_validator("source")
    @classmethod
    def _known_builtin(cls, source: str) -> str:
        kind, _, name = source.partition(":")
        if kind == "builtin" and name not in BUILTIN_SETS:
            raise ValueError(f"there is no built-in set {name!r}; allowed: {', '.join(BUILTIN_SETS)}")
        if kind == "upload" and not UPLOAD.fullmatch(name):
            raise ValueError("must be upload:NAME with the name that the service returned for the uploaded file")
        if kind == "hub" and not _DATASET.fullmatch(name):
            raise ValueError("must be hub:OWNER/NAME with the name of a dataset; a file or folder here is file:PATH")
        return source

    @field_validator("data_files")
    @classmethod
    def _inside_the_dataset(cls, paths: list[str]) -> list[str]:
        outside = [path for path in paths if path.startswith(("/", "~")) or ":" in path or ".." in path.split("/")]
        if outside:
            raise ValueError(f"{outside[0][:60]!r} is not a relative path in the dataset's repository")
        return check_unique(paths)

    @field_validator("template", mode="before")
    @classmethod
    def _known_template(cls, template: object) -> object:
        is_custom = isinstance(template, str) and "{prompt}" in template
        if template not in (None, "chat", "none") and not is_custom:
            raise ValueError("allowed: chat, none, or a text that contains {prompt}")
        return template

    @field_validator("positions")
    @classmethod
    def _valid_positions(cls, positions: list[_Position] | str | None) -> list[_Position] | str | None:
        return _check_positions(positions) if isinstance(positions, list) else positions

    @model_validator(mode="after")
    def _texts_are_inline(self) -> "PromptSetSpec":
        if self.texts and self.source != "inline":
            raise ValueError(f"texts is given, but source is {self.source!r}; set source: inline")
        if self.source == "inline" and not self.texts:
            raise ValueError("source is inline, so texts must list the prompts")
        return self

    @model_validator(mode="after")
    def _source_has_the_options(self) -> "PromptSetSpec":
        kind, _, address = self.source.partition(":")
        given = [option for option in ("config", "revision", "data_files") if getattr(self, option)]
        if given and kind != "hub":
            raise ValueError(
                f"{given[0]} is given, but source is {self.source[:60]!r}; only hub datasets have it, so leave it out"
            )
        has_splits = kind == "hub" or (kind == "file" and file_type(address) is None)
        if self.split != "train" and not has_splits:
            raise ValueError(
                f"split is {self.split!r}, but source is {self.source[:60]!r}; only hub datasets and folders of "
                "save_to_disk have splits, so leave it out"
            )
        return self

    @model_validator(mode="after")
    def _options_of_chats_need_chat(self) -> "PromptSetSpec":
        for name in self.chat_options:
            if self.template not in (None, "chat"):
                raise ValueError(
                    f"{name} is given, but template is {short(self.template)}; {_CHAT_OPTIONS[name]} needs template: "
                    "chat"
                )
        return self

    @property
    def chat_options(self) -> dict[str, Any]:
        """The options with a value that only a chat template uses: any of system, template_args and prefill."""
        return {name: value for name in _CHAT_OPTIONS if (value := getattr(self, name)) not in (None, {})}


class Sizes(NamedTuple):
    """The sizes of a plan."""

    batch_tokens: int
    shard_prompts: int


class CaptureSpec(Part):
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
    layers: Literal["all"] | Annotated[list[Index], Field(max_length=10_000)] = Field(
        "all", description="Layers to capture, from 0."
    )
    positions: Positions = Field(
        [-1],
        description="Token positions to capture: numbers from the end (-1 is the last token), and named positions, "
        "which are found in the text.",
    )
    keep: Count | None = Field(
        None,
        description="Store the activations of this many prompts of each set, the first ones. The activations of the "
        "other prompts are reduced to moments while the model runs. By default all are stored. A set with `positions: "
        "all` is always stored whole.",
    )
    batch_tokens: Literal["auto"] | Count = Field(
        "auto",
        description="Token budget of a batch, padding included; a longer prompt is a batch of its own. By default it "
        "depends on the kind of device: 2048 on CPUs, and more on GPUs, by the size of the model.",
    )
    shard_prompts: Literal["auto"] | Count = Field(
        "auto",
        description="Number of prompts in a shard; with `keep`, shards that are reduced may have more. By default 64 "
        "on CPUs, and on GPUs as many as fill a batch.",
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
        return sorted(check_unique(sites), key=list(Site).index)

    @field_validator("layers")
    @classmethod
    def _layers_once(cls, layers: str | list[int]) -> str | list[int]:
        return layers if isinstance(layers, str) else sorted(check_unique(layers, minimum=1))

    @property
    def sizes(self) -> Sizes:
        """The sizes of a planned survey; its plan has put numbers in place of `auto`.

        Raises:
            ValueError: a size is still open.
        """
        return Sizes(int(self.batch_tokens), int(self.shard_prompts))

    @property
    def stream_sites(self) -> list[Site]:
        """The captured sites of blocks whose vectors have d_model features."""
        return [site for site in self.sites if site in STREAM_SITES]

    @property
    def all_sites(self) -> tuple[Site, ...]:
        """The captured sites, `resid_final` included."""
        return (*self.sites, Site.RESID_FINAL) if self.final else tuple(self.sites)


class ContrastSpec(Part):
    """Two prompt sets; directions point from the negative to the positive set."""

    positive: Place = Field(description="Name of the positive prompt set.")
    negative: Place = Field(description="Name of the negative prompt set.")
    paired: bool | None = Field(
        None,
        description="Whether prompt i of one set matches prompt i of the other. The default is true for "
        "builtin:harmful and builtin:harmless with equal `where`, `draw`, `skip` and `limit`, else false.",
    )

    @property
    def sides(self) -> tuple[str, str]:
        """The names of both sets."""
        return self.positive, self.negative
