"""Check what sentences say by their numbers and key words, whatever their other words are."""

import re
from collections.abc import Iterable


def assert_says(texts: str | Iterable[str], *patterns: str) -> None:
    """Fail unless each pattern occurs in one of the texts.

    “…” in a pattern stands for any words. A number at its start or end must be a whole number of the text.
    """
    texts = [texts] if isinstance(texts, str) else list(texts)
    for pattern in patterns:
        expression = re.compile(
            ".*?".join(_part(part.strip()) for part in pattern.split("…")), re.DOTALL | re.IGNORECASE
        )
        assert any(expression.search(text) for text in texts), f"{pattern!r} is not in {texts}"


def assert_each_says(texts: Iterable[str], *patterns: str) -> None:
    """Fail unless there are as many texts as patterns, and each text has its own."""
    for text, pattern in zip(list(texts), patterns, strict=True):
        assert_says(text, pattern)


def _part(text: str) -> str:
    start = r"(?<![\d.-])" if text[:1].isdigit() else ""
    end = r"(?!\.?\d)" if text[-1:].isdigit() else ""
    return f"{start}{re.escape(text)}{end}"
