"""Everything that can go wrong and is not a bug, as one tree.

TheodoliteError              exit code 1
├── SpecError                exit code 2: the question is wrong, nothing was loaded
│   ├── PromptError          a prompt set cannot be read, or holds a prompt that cannot be measured
│   └── SiteNotFoundError    the model has no such site or layer
├── ModelError               the model cannot be found, read or loaded
│   └── UnsupportedModelError  it could be loaded, but we do not know where its parts are
├── ParityError              captured activations differ from plain Hugging Face: the run must not start
├── CaptureError             shards could not be captured
│   ├── RankOutOfMemoryError a batch does not fit into a rank, whose group must start again
│   └── RankOutOfStepError   a rank failed before, and its group must start again
├── ClusterError             a cluster cannot be reached, or refuses a job
│   ├── ClusterRefusedError  it answered, and does not take a job
│   └── JobError             a job failed, was stopped, is lost or takes too long
├── ServiceError             a service cannot be reached, or refuses the token
└── StoreError               the store cannot be reached, read or written
    ├── RunNotFoundError     no such run
    ├── FigureNotFoundError  the run has no such figure
    ├── TableNotFoundError   the run has no such table
    ├── ResultsNotFoundError the run has no such results, or none yet
    ├── RunDamagedError      what is stored is not what was committed
    └── StoreVersionError    the run was written by a newer version

Each message says what was wrong, which value, what is allowed, and what to do.
"""

import re


class TheodoliteError(Exception):
    """The root of the project's own errors."""

    exit_code = 1

    @classmethod
    def kind(cls) -> str:
        """Return what it is called where names have hyphens: `run-not-found` for RunNotFoundError."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__.removesuffix("Error")).lower()


class SpecError(TheodoliteError):
    """The survey asks for something that cannot be asked."""

    exit_code = 2


class PromptError(SpecError):
    """A prompt set cannot be read, or holds a prompt that cannot be measured."""


class SiteNotFoundError(SpecError):
    """The model has no such site or layer."""


class ModelError(TheodoliteError):
    """The model cannot be found, read or loaded."""


class UnsupportedModelError(ModelError):
    """The model's family is unknown, or does something that would be measured wrongly."""


class ParityError(TheodoliteError):
    """Captured activations differ from plain Hugging Face by more than rounding."""


class CaptureError(TheodoliteError):
    """Shards could not be captured."""


class RankOutOfMemoryError(CaptureError):
    """A batch does not fit into the memory of a rank, while the others wait for it: their group must start again."""


class RankOutOfStepError(CaptureError):
    """A rank failed before: what it sends next would be taken for what the others wait for."""


class ClusterError(TheodoliteError):
    """A cluster cannot be reached, or refuses a job."""


class ClusterRefusedError(ClusterError):
    """A cluster answered, and does not take a job."""


class JobError(ClusterError):
    """A job failed, was stopped, is lost or takes too long."""


class ServiceError(TheodoliteError):
    """A service cannot be reached, or refuses the token."""


class StoreError(TheodoliteError):
    """The store cannot be reached, read or written."""


class RunNotFoundError(StoreError):
    """The store has no run of this name."""


class FigureNotFoundError(StoreError):
    """The run has no figure of this name."""


class TableNotFoundError(StoreError):
    """The run has no table of this name."""


class ResultsNotFoundError(StoreError):
    """The run has no results of this name, or none yet."""


class RunDamagedError(StoreError):
    """What is stored is not what was committed."""


class StoreVersionError(StoreError):
    """The run was written by a newer version of Theodolite."""


def first_line(error: BaseException, limit: int | None = None) -> str:
    """Return the first line of what an error of a library says, or its kind where it says nothing.

    Args:
        error: the error.
        limit: how many characters to keep; None keeps all.
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0][:limit]
