"""The exception hierarchy of Theodolite.

TheodoliteError              exit code 1
├── SpecError                exit code 2: the spec or an argument is invalid; nothing was loaded
│   ├── PromptError          a prompt set cannot be read, or has a prompt that cannot be captured
│   └── SiteNotFoundError    the model has no such site or layer
├── ModelError               the model does not exist, or cannot be read or loaded
│   └── UnsupportedModelError  the model's family is unknown or not supported
├── ParityError              captured activations differ from plain Hugging Face; no run is created
├── CaptureError             shards could not be captured
│   ├── RankOutOfMemoryError a batch does not fit into a rank's memory; its group must restart
│   └── RankOutOfStepError   an earlier call of a rank failed; its group must restart
├── ClusterError             a cluster cannot be reached, or refuses a request
│   ├── ClusterRefusedError  the cluster refused a survey or a Ray job
│   └── JobError             a survey job failed, was stopped, is lost or takes too long
├── ServiceError             the service cannot be reached, or rejects the token
└── StoreError               the store cannot be reached, read or written
    ├── LinkedObjectError    an object, or a folder above it, is a symbolic link
    ├── RunNotFoundError     the store has no such run
    ├── RunInUseError        a driver works on the run, so it cannot be removed or repaired
    ├── FigureNotFoundError  the run has no such figure
    ├── TableNotFoundError   the run has no such table
    ├── ResultsNotFoundError the run has no such results, or they are not computed yet
    ├── RunDamagedError      stored objects differ from the committed ones
    └── StoreVersionError    another version of Theodolite wrote what cannot be read

Each message states the problem with its value, the allowed values, and the action to take.
"""

import re
from collections.abc import Collection, Sequence
from difflib import get_close_matches


class TheodoliteError(Exception):
    """Base class of all errors of Theodolite."""

    exit_code = 1

    @classmethod
    def kind(cls) -> str:
        """Return the name of the class with hyphens: `run-not-found` for RunNotFoundError."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__.removesuffix("Error")).lower()


class SpecError(TheodoliteError):
    """The spec or an argument is invalid."""

    exit_code = 2


class PromptError(SpecError):
    """A prompt set cannot be read, or has a prompt that cannot be captured."""


class SiteNotFoundError(SpecError):
    """The model has no such site or layer."""


class ModelError(TheodoliteError):
    """The model does not exist, or cannot be read or loaded."""


class UnsupportedModelError(ModelError):
    """The model's family is unknown, or the model lacks or has something that no attempt can measure correctly."""


class ParityError(TheodoliteError):
    """Captured activations differ from plain Hugging Face by more than rounding."""


class CaptureError(TheodoliteError):
    """Shards could not be captured."""


class RankOutOfMemoryError(CaptureError):
    """A batch does not fit into the memory of a rank; the other ranks wait for it, so the group must restart."""


class RankOutOfStepError(CaptureError):
    """An earlier call of a rank failed; the other ranks would mistake its next message for the missing one."""


class ClusterError(TheodoliteError):
    """A cluster cannot be reached, or refuses a request."""


class ClusterRefusedError(ClusterError):
    """A cluster refused a survey or a Ray job."""


class JobError(ClusterError):
    """A survey job failed, was stopped, is lost or takes too long."""


class ServiceError(TheodoliteError):
    """The service cannot be reached, or rejects the token."""


class StoreError(TheodoliteError):
    """The store cannot be reached, read or written."""


class LinkedObjectError(StoreError):
    """An object of a local store, or a folder above it, is a symbolic link, which is not followed."""


class RunNotFoundError(StoreError):
    """The store has no run of this name."""


class RunInUseError(StoreError):
    """A driver works on the run."""


class FigureNotFoundError(StoreError):
    """The run has no figure of this name."""


class TableNotFoundError(StoreError):
    """The run has no table of this name."""


class ResultsNotFoundError(StoreError):
    """The run has no results of this name, or they are not computed yet."""


class RunDamagedError(StoreError):
    """Stored objects differ from the committed ones."""


class StoreVersionError(StoreError):
    """Another version of Theodolite wrote the run, or a part of it, in a form that this version cannot read."""


_MOST_CHOICES = 20


def choices_text(given: str, allowed: Collection[str]) -> str:
    """Return the allowed names for a message; of many names, only those that are most like the given one."""
    near = get_close_matches(given, allowed, n=8, cutoff=0.5) if len(allowed) > _MOST_CHOICES else []
    if not near:
        return f"allowed: {', '.join(allowed)}"
    return f"of the {len(allowed)} allowed names, these are the most similar: {', '.join(near)}"


def short(value: object) -> str:
    """Return how Python writes a value, in at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def one_line(text: object) -> str:
    """Return a text on one line: names from a damaged object may contain line breaks."""
    return " ".join(str(text).split())


def first_line(error: BaseException, limit: int | None = None) -> str:
    """Return the first line of an error's message, or the name of its class if the message is empty.

    Args:
        error: the error.
        limit: maximum number of characters; None is no limit.
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0][:limit]


def first_of(names: Sequence[str], kind: str) -> str:
    """Return words for names in a message: `the tensor a`, or `3 tensors, the first is a`."""
    return f"the {kind} {names[0]}" if len(names) == 1 else f"{len(names)} {kind}s, the first is {names[0]}"
