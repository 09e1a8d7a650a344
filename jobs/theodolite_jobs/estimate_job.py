"""Entry point of a Ray job that estimates the cost of a spec: `python -m theodolite_jobs.estimate_job UPLOAD`.

Its last line is JSON: the `estimate`, or the `error`. The process prints no prompts.
"""

import json
import sys
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from theodolite.errors import TheodoliteError
from theodolite.settings import read_settings
from theodolite.spec_file import parse_json, parse_spec
from theodolite.store.uploads import read_upload
from theodolite_jobs.estimate import plan_survey


def main() -> None:
    """Print the estimate of the upload in the command-line arguments."""
    with TemporaryDirectory() as empty, chdir(empty):  # so that a hub id OWNER/NAME never matches a folder of this node
        try:
            settings = read_settings()
            spec = parse_spec(parse_json(read_upload(settings.store, sys.argv[1])))
            result: dict[str, Any] = {"estimate": plan_survey(spec, Path(), settings)}
        except TheodoliteError as error:
            result = {"error": str(error)}
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
