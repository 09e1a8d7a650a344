"""Choose the prompts of the parity check, and their batches, which have padding."""

from collections.abc import Iterator, Mapping, Sequence

from theodolite.spec import TokenIds
from theodolite.spec_parts import counted
from theodolite_jobs.capture.plan import HALF_PROBES, SetLayout, probe_prompts
from theodolite_jobs.models.batching import length_class_of
from theodolite_jobs.models.loaded import LoadedModel

# The number of rows in a batch of probes after the first batches: with long probes, more would need much memory.
_BATCH_ROWS = 4

Probes = Mapping[str, Sequence[TokenIds]]
"""The token ids of the probes of each set."""


def few_probes(model: LoadedModel, layouts: Mapping[str, SetLayout], probes: Probes) -> Probes:
    """Return the shortest and the longest probe of each set, and others so that their batches have padding."""
    return {name: _with_other_lengths(model, layouts[name], probe_prompts(chosen)) for name, chosen in probes.items()}


def many_probes(few: Probes, layouts: Mapping[str, SetLayout], probes: Probes) -> Probes:
    """Return the few probes, then all others, then beginnings of probes, if all sets have less than `HALF_PROBES`."""
    many = {name: list(dict.fromkeys([*few[name], *chosen])) for name, chosen in probes.items()}
    lacking = HALF_PROBES - sum(map(len, many.values()))
    beginnings = [(name, ids) for name, chosen in many.items() for ids in _beginnings(layouts[name], chosen)]
    if lacking > 0 and beginnings:
        step = max(1.0, len(beginnings) / lacking)
        for name, ids in [beginnings[int(step * index)] for index in range(min(lacking, len(beginnings)))]:
            many[name].append(ids)
    return many


def _beginnings(layout: SetLayout, probes: Sequence[TokenIds]) -> Iterator[TokenIds]:
    """Yield the beginnings of the probes that are no probes and have all captured positions."""
    known = set(probes)
    for ids in probes:
        for length in range(_shortest(layout), len(ids)):
            if ids[:length] not in known:
                known.add(ids[:length])
                yield ids[:length]


def _shortest(layout: SetLayout) -> int:
    reach = max(-(counted(label) or -1) for label in layout.positions)
    return max(1, layout.shared_prefix + reach)  # captured positions follow the shared prefix


def _with_other_lengths(model: LoadedModel, layout: SetLayout, probes: Sequence[TokenIds]) -> list[TokenIds]:
    """Return the probes, and another prompt for each probe that would be in a batch without padding.

    The other prompt is the probe without its end; if that is too short, it is the probe with its tokens behind the
    shared prefix twice. If a prompt of another length cannot be in the same batch, it is the probe with these tokens in
    reverse order.
    """
    class_of, shared = length_class_of(model.config), layout.shared_prefix
    shortest = _shortest(layout)
    chosen = list(probes)
    for ids in probes:
        lengths = {len(other) for other in chosen if class_of(len(other)) == class_of(len(ids))}
        if len(lengths) > 1:
            continue
        cut, doubled = ids[: max(shortest, len(ids) // 2)], (*ids, *ids[shared:])
        others = [other for other in (cut, doubled) if shortest <= len(other) <= model.dimensions.context_length]
        in_batch = [one for one in others if len(one) != len(ids) and class_of(len(one)) == class_of(len(ids))]
        chosen.append([*in_batch, (*ids[:shared], *reversed(ids[shared:]))][0])
    return chosen


def batches_of(model: LoadedModel, probes: Sequence[TokenIds], n_first: int) -> list[list[int]]:
    """Return the probes of each batch: the `n_first` ones by length class, the others in batches of a few rows."""
    class_of = length_class_of(model.config)
    classes = [class_of(len(ids)) for ids in probes]
    batches = []
    for one in dict.fromkeys(classes):
        own = [probe for probe in range(len(probes)) if classes[probe] == one]
        first, others = [probe for probe in own if probe < n_first], [probe for probe in own if probe >= n_first]
        batches += [first, *(others[at : at + _BATCH_ROWS] for at in range(0, len(others), _BATCH_ROWS))]
    return [batch for batch in batches if batch]
