"""What a cluster runs for a submitted survey: `python -m theodolite_jobs.job ID ATTEMPT`; the store says what is asked.

It prints how far it is, and no prompt: whoever reads its log may not be who wrote them.
"""

import os
import sys
from contextlib import chdir, suppress
from pathlib import Path
from socket import gethostname
from tempfile import TemporaryDirectory

from theodolite import __version__
from theodolite.errors import ClusterRefusedError, SpecError, StoreError, TheodoliteError
from theodolite.settings import Settings, read_settings
from theodolite.store.objects import SHARING
from theodolite.submission.job_store import End, end_attempt, read_job_spec, tell_run
from theodolite.submission.ray_jobs import SUBMITTED_BY
from theodolite_jobs.metrics_server import served
from theodolite_jobs.progress import Console
from theodolite_jobs.survey import survey


def run_job(job_id: str, number: int, settings: Settings) -> str:
    """Run a stored job to the end of one of its attempts, and return the run's id.

    Raises:
        TheodoliteError: whatever stops a survey; the job's end says it too.
    """
    try:
        _check_version()  # first, for a newer version's spec may have fields that are not known here
        spec = read_job_spec(settings.store, job_id)
        if spec is None:
            raise SpecError(f"the store {settings.store} on node {gethostname()} has no job {job_id}: {SHARING}")
        run = survey(spec, Path(), settings, Console(), lambda run_id: tell_run(settings.store, job_id, run_id))
    except TheodoliteError as error:
        with suppress(StoreError):  # a store that is not the submitter's takes no end; the log says the reason
            end_attempt(settings.store, job_id, number, End("failed", str(error)))
        raise
    end_attempt(settings.store, job_id, number, End("succeeded"))
    return run.id


def _check_version() -> None:
    """Refuse what another version asks: the spec and the store may mean something else to it."""
    asked_by = os.environ.get(SUBMITTED_BY, __version__)
    if asked_by != __version__:
        raise ClusterRefusedError(
            f"the cluster has Theodolite {__version__}, and {asked_by} submitted this job; install the same on both"
        )


def main() -> None:
    """Run the job whose id and attempt are the arguments, on the cluster that this process was started by."""
    with TemporaryDirectory() as empty, chdir(empty):  # so that OWNER/NAME of the hub is never a folder of this node
        try:
            settings = read_settings(ray_address="auto")
            with served(settings):
                print(run_job(sys.argv[1], int(sys.argv[2]), settings), flush=True)
        except TheodoliteError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
