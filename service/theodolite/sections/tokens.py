"""Tokens as tables of sections show them."""

from collections.abc import Iterable


def token_list(tokens: Iterable[str]) -> str:
    """Return tokens separated by two spaces, with visible spaces, line breaks and tabs."""
    return "  ".join(map(visible, tokens))


def visible(token: str) -> str:
    """Return a token with visible spaces, line breaks and tabs; an empty token is ∅."""
    return token.replace(" ", "·").replace("\n", "⏎").replace("\r", "\\r").replace("\t", "⇥") or "∅"
