"""The spec of a survey: all options that can change a result. Options of execution are in `settings`."""

import hashlib
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from theodolite.digests import canonical_json
from theodolite.groups import ANALYSES, GROUPS
from theodolite.prompt_values import Text
from theodolite.shard_bounds import ShardBounds
from theodolite.spec_options import EffectsSpec, GramSpec, HeadsSpec, ProbesSpec, WordsSpec
from theodolite.spec_parts import (
    NOUNS,
    SENTENCES,
    CaptureSpec,
    ContrastSpec,
    Label,
    ModelSpec,
    Name,
    NamedPosition,
    Part,
    Place,
    PromptSetSpec,
    check_unique,
)

TokenIds = tuple[int, ...]
"""The token ids of a prompt."""

Spans = tuple[tuple[int, int], ...]
"""The tokens of each position of a prompt, from the first to one past the last; several are averaged.

The first is negative if the prompt lacks the position.
"""

# The path of a sentence shows its tokens, so a special token in it is meant.
_SENTENCES = PromptSetSpec(source=f"words:{SENTENCES}", template="none", positions="all", special_tokens="allow")


class SurveySpec(Part):
    """A survey: the model, the prompt sets, the activations to capture, and the analyses."""

    name: Text | None = Field(None, description="Label of the survey; digests do not include it.")
    model: ModelSpec
    prompts: dict[Name, PromptSetSpec] = Field(
        description="Prompt sets by name; an empty mapping surveys only the weights.", max_length=1_000
    )
    capture: CaptureSpec = CaptureSpec()
    contrasts: dict[Name, ContrastSpec] = Field(
        default_factory=dict, description="Contrasts by name.", max_length=1_000
    )
    analyses: Annotated[list[Place], Field(max_length=100)] | None = Field(
        None,
        description=f"Any of: {', '.join(ANALYSES)}; the default is all that the model and the prompts allow, "
        "but probes, effects and words only if the spec has the section of this name.",
    )
    heads: HeadsSpec = HeadsSpec()
    words: WordsSpec | None = Field(
        None,
        description="Options of `words`, which is computed if `analyses` lists it, or without `analyses` if this "
        "section exists.",
    )
    gram: GramSpec = GramSpec()
    probes: ProbesSpec | None = Field(
        None,
        description="Options of `probes`, which is computed if `analyses` lists it, or without `analyses` if this "
        "section exists.",
    )
    effects: EffectsSpec | None = Field(
        None,
        description="Options of `effects`, which is computed if `analyses` lists it, or without `analyses` if this "
        "section exists.",
    )

    @field_validator("analyses")
    @classmethod
    def _existing_analyses(cls, analyses: list[str] | None) -> list[str] | None:
        unknown = [name for name in analyses or [] if name not in ANALYSES]
        if unknown:
            raise ValueError(
                f"{', '.join(map(repr, unknown))} does not exist in this version; allowed: {', '.join(ANALYSES)} "
                "(moments and directions are always computed)"
            )
        return None if analyses is None else sorted(check_unique(analyses, minimum=1), key=ANALYSES.index)

    @model_validator(mode="after")
    def _parts_fit_together(self) -> "SurveySpec":
        if "words" in (self.analyses or []) and not self.heads.vectors:
            raise ValueError("analyses: 'words' needs singular vectors, but heads.vectors is 0; set it to 1 or more")
        need_prompts = [name for name in self.analyses or [] if "prompts" in GROUPS[name].needs]
        if need_prompts and not self.prompts:
            raise ValueError(f"analyses: {need_prompts[0]!r} needs prompts, but prompts is empty; add a prompt set")
        need_contrasts = [name for name in self.analyses or [] if "contrasts" in GROUPS[name].needs]
        if need_contrasts and not self.contrasts:
            raise ValueError(f"analyses: {need_contrasts[0]!r} needs contrasts, but contrasts is empty; add a contrast")
        if self.effects is not None and self.analyses is not None and "effects" not in self.analyses:
            raise ValueError(
                "effects has options, but analyses does not list it; add it, or remove the section effects"
            )
        for name in ("effects", "probes"):
            if getattr(self, name) is not None and not self.contrasts:
                raise ValueError(f"{name} needs contrasts, but contrasts is empty; add a contrast, or remove {name}")
        if self.prompts and all(prompt_set.positions == "all" for prompt_set in self.prompts.values()):
            raise ValueError(
                "prompts: every set has positions: all, but statistics need a list; set a list in at least one set"
            )
        keep, named = self.capture.keep, self.analyses or []
        is_default = self.gram.samples == GramSpec().samples  # the default means all that are stored, at most so many
        if keep is not None and self.gram.samples > keep and not is_default:
            raise ValueError(
                f"gram.samples is {self.gram.samples}, but capture.keep is {keep}; Gram matrices need stored "
                f"activations, so set gram.samples to {keep} or less, or raise capture.keep"
            )
        few = [name for name in named if keep is not None and keep < GROUPS[name].least_samples]
        if few:
            raise ValueError(
                f"analyses: {few[0]!r} needs the activations of at least {GROUPS[few[0]].least_samples} prompts, but "
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
        if self.words is not None and self.words.nouns not in allowed:
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
            positions = [self.labels_of(side) for side in contrast.sides]
            if not set(positions[0]) & set(positions[1]):
                shown = [f"[{', '.join(map(str, labels))}]" for labels in positions]
                raise ValueError(
                    f"contrasts.{name}: {contrast.positive} has positions {shown[0]} and {contrast.negative} "
                    f"{shown[1]}; a contrast needs a common position"
                )
        return self

    @model_validator(mode="after")
    def _names_mean_one_kind(self) -> "SurveySpec":
        both = self.means & {one.name for one in self._named if one.token != "mean"}
        if both:
            raise ValueError(
                f"positions: {min(both)!r} is the mean of tokens in one set and a single token in another; give them "
                "two names"
            )
        return self

    @model_validator(mode="after")
    def _effects_are_of_captured_states(self) -> "SurveySpec":
        options = self.effects
        if options is not None or "effects" in (self.analyses or []):
            for name, contrast in self.contrasts.items():
                if set.intersection(*(set(self.labels_of(side)) for side in contrast.sides)) <= self.means:
                    raise ValueError(
                        f"effects changes the state of a token, but the sets of the contrast {name!r} have only means "
                        "in common; add a position of a single token, or remove effects"
                    )
        if options is None:
            return self
        least, keep = GROUPS["effects"].least_samples, self.capture.keep
        if keep is not None and keep < least:
            raise ValueError(f"effects needs the activations of at least {least} prompts, but capture.keep is {keep}")
        lost = [site for site in options.sites or [] if site not in self.capture.sites]
        if lost:
            raise ValueError(f"effects.sites: {lost[0]} is not captured; add it to capture.sites")
        captured = self.capture.layers
        if isinstance(options.layers, list) and captured != "all" and (missing := set(options.layers) - set(captured)):
            raise ValueError(f"effects.layers: layer {min(missing)} is not captured; add it to capture.layers")
        unpaired = [name for name in self.contrasts if not self.is_paired(name)]
        if options.patch == "pair" and unpaired:
            raise ValueError(
                f"effects.patch is pair, but the contrast {unpaired[0]!r} has no pairs; set patch: mean, or "
                f"contrasts.{unpaired[0]}.paired: true if prompt i of both sets belong together"
            )
        return self

    @property
    def sets(self) -> dict[str, PromptSetSpec]:
        """The prompt sets to capture: `prompts`, and the set `sentences` for the trajectories of `words.sentences`.

        Trajectories need prompts, sentences and `resid_final`.
        """
        has_sentences = bool(self.prompts) and bool(self.words_options.sentences) and self.capture.final
        return {**self.prompts, **({SENTENCES: _SENTENCES} if has_sentences else {})}

    def positions_of(self, prompt_set: str) -> list[int | NamedPosition]:
        """Return the positions of a set: its own, or those of the capture; none with `positions: all`."""
        own = self.sets[prompt_set].positions or self.capture.positions
        return [] if own == "all" else own

    def labels_of(self, prompt_set: str) -> list[Label]:
        """Return the labels of the positions of a set. In a survey with named positions all are texts, such as `-1`."""
        labels: list[Label] = [
            one.name if isinstance(one, NamedPosition) else one for one in self.positions_of(prompt_set)
        ]
        return list(map(str, labels)) if self._named else labels

    def position_of(self, prompt_set: str, label: Label) -> int | NamedPosition:
        """Return what a label of a position means in a set; a number from the end if no named position has it."""
        named = {one.name: one for one in self.positions_of(prompt_set) if isinstance(one, NamedPosition)}
        return named[label] if label in named else int(label)

    @property
    def means(self) -> frozenset[str]:
        """The names of the positions at which means over several tokens are measured."""
        return frozenset(one.name for one in self._named if one.token == "mean")

    @property
    def _named(self) -> list[NamedPosition]:
        """The named positions of all sets of `prompts`."""
        return [one for name in self.prompts for one in self.positions_of(name) if isinstance(one, NamedPosition)]

    @property
    def words_options(self) -> WordsSpec:
        """The options of `words`; without its section, the default ones, so that it can be requested later."""
        return self.words or WordsSpec()

    def bounds(self, prompt_set: str, n_samples: int) -> ShardBounds:
        """Return the bounds of the shards of a set; sets with `positions: all` have no moments and are stored whole."""
        keep = None if self.sets[prompt_set].positions == "all" else self.capture.keep
        n_kept = n_samples if keep is None else min(keep, n_samples)
        return ShardBounds(n_samples, n_kept, self.capture.sizes.shard_prompts)

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
        return canonical_json(self.model_dump(mode="json", exclude={"name"}))

    def digest(self) -> str:
        """Return the SHA-256 of the canonical form, in hex."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()
