"""Prompt sets whose measured position is the first token of the sequence, in many models an attention sink."""

from theodolite.spec_parts import Label
from theodolite.store.runs import Run


def n_first_tokens(run: Run, prompt_set: str, position: Label) -> int:
    """Return the number of prompts of a set whose first token is at a position, or among the tokens of a mean.

    Every prompt has a token at each position from the end, so only the earliest of these can be a first token. It is 0
    for sets with `positions: all`.
    """
    facts = run.record.sets[prompt_set]
    if facts.n_first_named:
        return facts.n_first_named.get(str(position), 0)
    if run.record.spec.sets[prompt_set].positions == "all" or position != facts.positions[0]:
        return 0
    return facts.n_first


def is_first_token(run: Run, prompt_set: str, position: Label) -> bool:
    """Return whether a position is the first token of more than half of the prompts of a set."""
    return 2 * n_first_tokens(run, prompt_set, position) > run.record.sets[prompt_set].n_samples


def set_labels(run: Run, position: Label) -> dict[str, str]:
    """Return the name of each set for sentences and figures, with a remark if the position is the first token."""
    return {name: f"{name}{SINK if is_first_token(run, name, position) else ''}" for name in run.record.sets}


SINK = " (first token: an attention sink)"
"""The remark behind the name of a set whose position is the first token of most prompts."""
