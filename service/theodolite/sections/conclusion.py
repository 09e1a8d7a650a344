"""The conclusion of a run: what was asked, what was found, what it rests on, and what it does not say."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from theodolite.groups import GROUPS, SHOWN
from theodolite.groups.schema import SIDES
from theodolite.query.first_tokens import is_first_token
from theodolite.query.runs import describe
from theodolite.query.twin import untrained_twin
from theodolite.sections.catalogue import sections_of
from theodolite.sections.parts import Section, listed
from theodolite.sections.worth import Worth
from theodolite.store.manifest import finished_groups
from theodolite.store.result_reader import read_contrasts
from theodolite.store.runs import Run

_ORDER = ("separation", "effects", "curves", "contributions", "routing", "travel", "basis", "heads", "words")
"""The groups with findings, the most direct answer first."""

_ANSWERS = ("separation", "effects")
"""The groups that answer the question of a contrast: do the sets differ, and does the model use the difference?"""

_MOST = 5  # findings

_OPTIONS = {"system": "the system message “{}”", "template_args": "template_args {}", "prefill": "prefill “{}”"}


@dataclass(frozen=True)
class Finding:
    """The main result of a section, as one or more sentences; `group` and `figure` say where it is shown."""

    text: str
    group: str
    figure: str


@dataclass(frozen=True)
class Conclusion:
    """The parts of a conclusion, each a list of sentences."""

    asked: list[str]
    found: list[Finding]
    rests_on: list[str]
    limits: list[str]


def read_conclusion(run: Run) -> Conclusion:
    """Return the conclusion of a run.

    Raises:
        ResultsNotFoundError, RunDamagedError: as in `sections_of`.
    """
    return conclusion(run, {group: sections_of(run, group) for group in _ORDER})


def conclusion(run: Run, sections: Mapping[str, Sequence[Section]]) -> Conclusion:
    """Return the conclusion of a run from the sections of its groups."""
    found = _findings(run, sections)
    return Conclusion(list(_asked(run)), found, list(_rests_on(run)), list(_limits(run, found)))


def _findings(run: Run, sections: Mapping[str, Sequence[Section]]) -> list[Finding]:
    """Return the findings that are worth the most, the first ones first; answers are never left out for others."""
    found = [
        (_rank(group, one.worth), Finding(one.finding, group, _figure(one)))
        for group in _ORDER
        if _is_asked(run, group)
        for one in sections.get(group, ())
        if one.finding
    ]
    ordered = [finding for _, finding in sorted(found, key=itemgetter(0))]
    answers = [finding for finding in ordered if finding.group in _ANSWERS][:_MOST]
    others = [finding for finding in ordered if finding not in answers][: _MOST - len(answers)]
    return [finding for finding in ordered if finding in (*answers, *others)]


def _is_asked(run: Run, group: str) -> bool:
    """Return whether a group belongs to the question of the run: nouns and travel are no part of that of a contrast.

    A spec that names travel under `analyses` asks for it.
    """
    if not read_contrasts(run, finished_groups(run)) or group not in ("travel", "words"):
        return True
    return group == "travel" and group in (run.record.spec.analyses or ())


def _rank(group: str, worth: Worth) -> tuple[int, float, float]:
    """Return the key of a finding; the smallest key comes first.

    Answers whose test passes come first, then other findings whose test passes, the largest effect first, then findings
    whose test does not pass or that have none.
    """
    order = _ORDER.index(group)
    if worth.passed and group not in _ANSWERS:
        return 1, -worth.z, order
    return 0 if worth.passed else 2, order, -worth.z


def _figure(section: Section) -> str:
    """Return the name of the first figure of a section; empty if it has none."""
    return next((figure.name for figure in [*section.figures, *section.maps]), "")


def _asked(run: Run) -> Iterator[str]:
    model, sets = run.record.model, run.record.sets
    if not sets:
        yield f"Which structure do the weights of the {model.n_layers} layers of {model.name} have?"
    contrasts = read_contrasts(run, finished_groups(run))
    for sides in contrasts.values():
        names = [str(sides[side]) for side in SIDES]
        counts = [str(sets[name].n_samples) for name in names]
        n = f"{counts[0]} matched pairs" if sides["paired"] else f"{' and '.join(counts)} unpaired prompts"
        yield (
            f"How do the activations of {model.name} differ between {' and '.join(names)} prompts ({n}), along its "
            f"{model.n_layers} layers?"
        )
    if sets and not contrasts:
        yield f"How do the activations of {' and '.join(sets)} change along the layers of {model.name}?"
    finished = finished_groups(run)
    yield f"Results: {', '.join(GROUPS[name].title for name in SHOWN if name in finished)}."


def _stored(run: Run) -> str:
    """Return how the weights are stored, or from which format they are dequantised."""
    model = run.record.model
    return f"dequantised from {model.dequantised_from}" if model.dequantised_from else f"stored as {model.dtype}"


def _rests_on(run: Run) -> Iterator[str]:
    described, record = describe(run), run.record
    if not record.sets:
        yield f"The weights of {record.model.place}, {_stored(run)}, in float64."
        return
    counts = {}
    for name, facts in record.sets.items():
        left_out = described["sets"][name]["quarantined"] + facts.n_skipped
        counts[name] = f"{facts.n_samples + facts.n_skipped} ({left_out} left out)"
    yield f"Prompts: {listed(counts)}. {_templates(run)}"
    yield from (warning for warning in record.warnings if warning.startswith(("prompts.", "contrasts.")))
    if parity := described["parity"]:
        allowed = "" if parity["bound"] is None else f" (allowed: {parity['bound']:.0e})"
        warning = [f"{parity['warning']}."] if parity["warning"] else []
        notes = "".join(f"{note} " for note in [*warning, *described["parity_notes"]])
        same = f"weights, {_stored(run)}," if record.model.dequantised_from else "weights"
        yield (
            f"On {parity['prompts']} probe prompts, captured activations differ from those of plain Hugging Face "
            f"transformers with the same {same} by at most {parity['max_error']:.1e} of their norm{allowed}, in "
            f"{parity['dtype']} on {parity['device']}. {notes}Statistics are computed in float64, except copying "
            "scores, rankings of tokens and angles to all tokens (float32)."
        )
    if "permutations" in finished_groups(run):
        yield (
            "Numbers in square brackets are 95 % intervals; the notes of a section say which of them are simultaneous "
            "over depths. A ± after a value with permuted labels is the standard deviation over permutations. With 200 "
            "of them, the smallest possible p is 1/201 ≈ 0.005."
        )


def _templates(run: Run) -> str:
    """Return the template of each set."""
    of_sets = {name: _template(run, name) for name in run.record.sets}
    if len(set(of_sets.values())) == 1:
        return f"The template of all sets is {next(iter(of_sets.values()))}."
    return f"Templates: {listed(of_sets)}."


def _template(run: Run, name: str) -> str:
    options = dict(run.record.spec.sets[name].chat_options)
    if args := options.get("template_args"):
        options["template_args"] = ", ".join(f"{one} = {json.dumps(value)}" for one, value in args.items())
    shown = [_OPTIONS[option].format(value) for option, value in options.items()]
    return f"“{run.record.sets[name].template}”{' with ' if shown else ''}{' and '.join(shown)}"


def _limits(run: Run, found: Sequence[Finding]) -> Iterator[str]:
    groups = {finding.group for finding in found}
    sets = run.record.sets
    positions = sorted({str(facts.positions[-1]) for facts in sets.values()})
    if sets:
        where = f"position {positions[0]}" if len(positions) == 1 else "the last position of each set"
        if positions == ["-1"]:
            where += ", the last token of the prompt with its template"
        yield (
            f"The findings hold for these prompts, with these templates, at {where}. Other prompts, templates and "
            "positions can give other findings."
        )
    for name, of in read_contrasts(run, finished_groups(run)).items():
        if len({_template(run, of[side]) for side in SIDES}) > 1:
            yield f"The two sets of “{name}” have different templates, which alone can separate them."
    if groups & {"separation", "curves", "contributions"}:
        names = ", ".join(f"“{name}”" for name in read_contrasts(run, finished_groups(run)))
        unchanged = "" if "effects" in groups else "nothing was changed in the model, and "
        others = " (except those about changed states)" if "effects" in groups else ""
        yield (
            f"They{others} say what the activations contain, not what the model uses: {unchanged}no answer of the "
            f"model was read. The name of a contrast ({names}) is only a label."
        )
        yield (
            "Intervals and permutations treat the prompts of a set (in a paired contrast, the pairs) as independent. "
            "Prompts that share a topic may not be independent, and a held-out prompt can share its topic with other "
            "prompts."
        )
    model = run.record.model
    if model.adapter is not None:
        yield (
            f"The weights are those of {model.place} with the adapter {model.adapter.summary}, which was merged in "
            "float32. A program that does not merge it rounds differently."
        )
    if model.weights == "trained" and (model.kind == "gguf" or model.dequantised_from):
        stated = f" from {model.dequantised_from}" if model.dequantised_from else ""
        yield (
            f"The weights are those of {model.place}, dequantised{stated}. The model in its original precision, and "
            "kernels that compute with quantised weights or activations, can give other numbers."
        )
    if "separation" in groups and model.weights == "trained" and untrained_twin(run) is None:
        yield (
            "An untrained model may separate the sets too, because their words differ; no untrained twin was surveyed."
            + ("" if model.adapter is not None else " (A spec with model: {weights: random} surveys one.)")
        )
    if sinks := [name for name in sets if is_first_token(run, name, sets[name].positions[-1])]:
        yield f"Statistics of {' and '.join(sinks)} describe the first token, in many models an attention sink."
