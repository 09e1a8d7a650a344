"""Assertions on error messages."""

import pytest


def only_line(error: pytest.ExceptionInfo[Exception]) -> str:
    """Return the message of an error, which must be one short line with a reason."""
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 400
    assert not message.rstrip().endswith(":"), "the reason is missing"
    return message
