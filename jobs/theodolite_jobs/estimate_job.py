"""Entry point of a Ray job that estimates the cost of a spec: `python -m theodolite_jobs.estimate_job UPLOAD`.

It prints the result in a line that `theodolite.submission.estimates` reads. With `--example` after the upload, the line
has the text of a prompt; otherwise it has none.
"""

import json
import signal
import sys
from contextlib import chdir
from pathlib import Path
from socket import gethostname
from tempfile import TemporaryDirectory
from typing import Any

from theodolite.errors import ClusterError, ModelError, PromptError, SpecError, TheodoliteError
from theodolite.settings import read_settings
from theodolite.spec_file import parse_json, parse_spec
from theodolite.store.objects import SHARING
from theodolite.store.uploads import read_upload
from theodolite.submission.estimates import RESULT
from theodolite.submission.ray_jobs import check_submitter
from theodolite_jobs.estimate import plan_survey

SECONDS = 300
"""Time limit: a download that hangs would keep a place among the estimates for ever."""


def main() -> None:
    """Print the estimate of the upload in the command-line arguments."""
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(SECONDS)
    with TemporaryDirectory() as empty, chdir(empty):  # so that a hub id OWNER/NAME never matches a folder of this node
        try:
            result = _estimate(sys.argv[1], with_example="--example" in sys.argv)
        except TheodoliteError as error:
            result = {"error": str(error), "is_of_survey": isinstance(error, SpecError | ModelError)}
    signal.alarm(0)
    print(f"{RESULT}{json.dumps(result)}", flush=True)


def _estimate(upload: str, *, with_example: bool) -> dict[str, Any]:
    check_submitter()
    settings = read_settings(ray_address="auto")  # the sizes of batches depend on the devices of its nodes
    try:
        content = read_upload(settings.store, upload)
    except PromptError as error:
        raise ClusterError(f"the store {settings.store} on node {gethostname()} has no such spec: {SHARING}") from error
    spec = parse_spec(parse_json(content))
    return {"estimate": plan_survey(spec, Path(), settings, with_example=with_example)}


def _give_up(*_: Any) -> None:
    raise ClusterError(f"the estimate took longer than {SECONDS} seconds; estimate the survey again")


if __name__ == "__main__":
    main()
