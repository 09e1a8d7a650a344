"""Prompts with more tokens than the model's context: left out, or cut until they fit."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from theodolite.errors import PromptError
from theodolite.spec import SurveySpec, TokenIds
from theodolite_jobs.prompts.conversations import Prompt
from theodolite_jobs.prompts.tokens import Tokenized

Tokenize = Callable[[str, list[Prompt]], Tokenized]
"""Returns the token ids of prompts of the named set, with its template and special tokens."""


def fit_context(
    spec: SurveySpec,
    prompts: Mapping[str, list[Prompt]],
    tokens: Mapping[str, list[TokenIds]],
    context_length: int,
    tokenizer: Any,
    tokenize: Tokenize,
) -> tuple[dict[str, list[Prompt]], dict[str, list[int]], dict[str, dict[str, int]]]:
    """Return the prompts of all sets with each set's rule `too_long` applied, their numbers in the set, and counts.

    The counts of each changed set are `n_skipped` and `n_truncated`, those that are not 0. `skip` also
    leaves out the partners of a too long prompt in paired contrasts. Prompts of sets with the rule `refuse` stay as
    they are.

    Raises:
        PromptError: `skip` leaves no prompt, a prompt does not fit although all of its own text is cut, or a
            conversation would have to be cut.
    """
    left_out = _left_out(spec, tokens, context_length)
    fitted: dict[str, list[Prompt]] = {}
    numbers: dict[str, list[int]] = {}
    counts: dict[str, dict[str, int]] = {}
    for name, prompt_set in spec.sets.items():
        kept = [index for index in range(len(tokens[name])) if index not in left_out[name]]
        if not kept:
            raise PromptError(
                f"prompts.{name}.too_long: skip leaves out all {len(tokens[name])} prompts, because they, or their "
                f"partners in a paired contrast, have more tokens than the model's context of {context_length}; "
                "shorten them, or use truncate_left or truncate_right"
            )
        is_cut = prompt_set.too_long in ("truncate_left", "truncate_right")
        rests = {}
        for index in kept:
            if is_cut and len(tokens[name][index]) > context_length:
                where, text = f"prompts.{name}: prompt {index}", prompts[name][index]
                if not isinstance(text, str):
                    raise PromptError(
                        f"{where} is a conversation with more tokens than the model's context of {context_length}, and "
                        "conversations cannot be cut; use too_long: skip, or shorten it"
                    )
                at_start = prompt_set.too_long == "truncate_left"
                cuts = _cuts(where, text, tokenizer, at_start=at_start)
                of_set = partial(tokenize, name)
                rests[index] = _longest(where, text, cuts, context_length, of_set, at_start=at_start)
        fitted[name], numbers[name] = [rests.get(index, prompts[name][index]) for index in kept], kept
        changed = {"n_skipped": len(left_out[name]), "n_truncated": len(rests)}
        if any(changed.values()):
            counts[name] = {key: number for key, number in changed.items() if number}
    return fitted, numbers, counts


def _left_out(
    spec: SurveySpec, tokens: Mapping[str, Sequence[TokenIds]], context_length: int
) -> dict[str, frozenset[int]]:
    """Return the prompts of each set to leave out: too long ones of sets that skip, and their partners everywhere."""
    left_out = {
        name: frozenset(index for index, ids in enumerate(tokens[name]) if len(ids) > context_length)
        if one.too_long == "skip"
        else frozenset()
        for name, one in spec.sets.items()
    }
    pairs = [contrast.sides for name, contrast in spec.contrasts.items() if spec.is_paired(name)]
    # A set may be in several paired contrasts, so partners may have partners.
    while any(left_out[positive] != left_out[negative] for positive, negative in pairs):
        for positive, negative in pairs:
            left_out[positive] = left_out[negative] = left_out[positive] | left_out[negative]
    return left_out


def _longest(
    where: str,
    text: str,
    cuts: Sequence[int],
    context_length: int,
    tokenize: Callable[[list[Prompt]], Tokenized],
    *,
    at_start: bool,
) -> str:
    """Return the longest rest of a text that fits.

    `cuts` are the indices of the characters at which to cut, from the longest rest to the shortest. Rests are tokenised
    again with the template: the tokens at a cut may change, and a template may repeat the text.
    """

    def rest_of(cut: int) -> str:
        return text[cut:] if at_start else text[:cut]

    def fits(cut: int) -> bool:
        rest = rest_of(cut)
        try:
            return not rest.strip() or len(tokenize([rest]).tokens[0]) <= context_length
        except PromptError as error:  # it numbers the rest 0
            raise PromptError(f"{where} cannot be cut: {str(error).replace('prompt 0', 'the rest')}") from error

    n_cut = bisect_left(cuts, True, key=fits)
    if n_cut == len(cuts) or not rest_of(cuts[n_cut]).strip():
        raise PromptError(
            f"{where} does not fit into the model's context of {context_length} tokens, even if all of its text is "
            "cut; shorten the template or the system message, or remove the prompt"
        )
    return rest_of(cuts[n_cut])


def _cuts(where: str, text: str, tokenizer: Any, *, at_start: bool) -> list[int]:
    """Return where to cut a text so that it loses its first, or else its last, 0, 1, 2, … tokens."""
    try:
        spans = tokenizer([text], add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"][0]
    except NotImplementedError as error:
        raise PromptError(
            f"{where} is too long, and this model's tokenizer (a slow one) does not say where tokens begin, so the "
            "prompt cannot be cut; use too_long: skip, or shorten the prompt"
        ) from error
    return [start for start, _ in spans] if at_start else [end for _, end in reversed(spans)]


def long_prompt_warnings(
    name: str, n_prompts: int, context_length: int, n_skipped: int = 0, n_truncated: int = 0
) -> list[str]:
    """Return how many prompts of the set `name` are left out and cut; `n_prompts` is the number of those left."""
    context = f"the model's context of {context_length} tokens"
    warnings = []
    if n_skipped:
        warnings.append(
            f"prompts.{name}: {n_skipped} of {n_prompts + n_skipped} prompts are left out: they, or their partners in "
            f"a paired contrast, are longer than {context}"
        )
    if n_truncated:
        warnings.append(
            f"prompts.{name}: {n_truncated} of {n_prompts} prompts are cut to fit into {context}; the run stores the "
            "rest of each prompt"
        )
    return warnings
