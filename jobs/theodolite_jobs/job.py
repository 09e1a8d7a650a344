"""Entry point of a Ray job that runs a survey job of the store: `python -m theodolite_jobs.job ID ATTEMPT`.

The process prints its progress and no prompts, because readers of its log may not be allowed to read the prompts.
"""

import sys
from contextlib import chdir, suppress
from pathlib import Path
from socket import gethostname
from tempfile import TemporaryDirectory

from theodolite.errors import SpecError, StoreError, TheodoliteError
from theodolite.settings import Settings, read_settings
from theodolite.store.objects import SHARING
from theodolite.submission.job_store import End, end_attempt, read_job_spec, record_run
from theodolite.submission.ray_jobs import check_submitter
from theodolite_jobs.metrics_server import served
from theodolite_jobs.progress import Console
from theodolite_jobs.survey import survey


def run_job(job_id: str, number: int, settings: Settings) -> str:
    """Run one attempt of a survey job, record its end in the store, and return the run's id.

    Raises:
        TheodoliteError: the survey failed; the recorded end has the same message.
    """
    try:
        check_submitter()  # first, because the spec of a newer version may have unknown fields
        spec = read_job_spec(settings.store, job_id)
        if spec is None:
            raise SpecError(f"the store {settings.store} on node {gethostname()} has no survey job {job_id}: {SHARING}")
        run = survey(spec, Path(), settings, Console(), lambda run_id: record_run(settings.store, job_id, run_id))
    except TheodoliteError as error:
        with suppress(StoreError):  # another store than the submitter's has no such survey job; the log has the error
            end_attempt(settings.store, job_id, number, End("failed", str(error)))
        raise
    end_attempt(settings.store, job_id, number, End("succeeded"))
    return run.id


def main() -> None:
    """Run the survey job of the command-line arguments on the Ray cluster that started this process."""
    with TemporaryDirectory() as empty, chdir(empty):  # so that a hub id OWNER/NAME never matches a folder of this node
        try:
            settings = read_settings(ray_address="auto")
            with served(settings):
                print(run_job(sys.argv[1], int(sys.argv[2]), settings), flush=True)
        except TheodoliteError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
