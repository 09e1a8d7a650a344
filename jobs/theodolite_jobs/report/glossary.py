"""The terms of the glossary in the sentences of a report: each links to its meaning, which a tooltip shows."""

import re
from functools import cache
from importlib import resources

from markupsafe import Markup, escape

from theodolite.groups import GROUPS

_EVERYDAY = {"direction", "identity", "norm", "step"}  # sentences use these words in other senses too
_ROW = re.compile(r"^\| \*\*(?P<term>[^*]+)\*\* \| (?P<meaning>.+) \|$", flags=re.MULTILINE)


@cache
def terms() -> dict[str, str]:
    """Return the meaning of each term that is a statistic, as plain text; its meaning names an array or a column."""
    arrays = {variable.name for group in GROUPS.values() for variable in group.variables}

    def is_statistic(meaning: str) -> bool:
        return "column `" in meaning or not arrays.isdisjoint(re.findall(r"`(\w+)`", meaning))

    text = resources.files("theodolite_jobs.report").joinpath("glossary.md").read_text(encoding="utf-8")
    found = {match["term"]: match["meaning"] for match in _ROW.finditer(text)}
    statistics = {term: _plain(meaning) for term, meaning in found.items() if is_statistic(meaning)}
    return {re.sub(r" \(.*\)$", "", term): meaning for term, meaning in statistics.items() if term not in _EVERYDAY}


def _plain(meaning: str) -> str:
    """Return a meaning without the marks of Markdown."""
    return re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", meaning).replace("`", "").replace("\\|", "|").replace("*", "")


@cache
def _pattern() -> re.Pattern[str]:
    longest_first = sorted(terms(), key=len, reverse=True)
    return re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, longest_first))})s?(?![\w-])", flags=re.IGNORECASE)


@cache
def _by_lower_case() -> dict[str, str]:
    return {term.lower(): term for term in terms()}


def anchor(term: str) -> str:
    """Return the name of a term's row in the glossary of a report."""
    return "term-" + re.sub(r"\W+", "-", term).strip("-").lower()


class Linked:
    """Turns terms into links, each at its first occurrence in a text or a list of texts.

    Attributes:
        used: the terms that were linked in all texts so far.
    """

    def __init__(self) -> None:
        """Start without links."""
        self.used: set[str] = set()

    def texts(self, texts: list[str]) -> list[Markup]:
        """Return the texts as HTML; a term is linked only once in all of them."""
        linked: set[str] = set()
        made = [self._text(text, linked) for text in texts]
        self.used |= linked
        return made

    def meanings(self) -> dict[str, str]:
        """Return the meaning of each linked term, in alphabetical order."""
        return {term: terms()[term] for term in sorted(self.used, key=str.lower)}

    def _text(self, text: str, linked: set[str]) -> Markup:
        parts, end = [], 0
        for match in _pattern().finditer(text):
            term = _by_lower_case()[match[1].lower()]
            if term not in linked:
                linked.add(term)
                link = Markup('<a class="term" href="#{}" title="{}">{}</a>')
                parts += [escape(text[end : match.start()]), link.format(anchor(term), terms()[term], match[0])]
                end = match.end()
        return Markup("").join([*parts, escape(text[end:])])
