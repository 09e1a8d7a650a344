"""A Theodolite service from Python: its runs, comparisons between them, and surveys to submit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any
from urllib.parse import quote

import httpx
import pandas as pd

from theodolite.errors import (
    ClusterError,
    ResultsNotFoundError,
    ServiceError,
    SpecError,
    TheodoliteError,
)
from theodolite.run_reader import RunReader, html_table
from theodolite.spec_file import read_spec
from theodolite.submission.waiting import said_progress, wait_for_end

_PATHS = {
    "details": "",
    "curves": "/curves",
    "direction": "/directions/{contrast}",
    "heads": "/heads",
    "head": "/heads/{layer}/{head}",
    "group": "/{group}",
    "table": "/tables/{name}",
    "sections": "/sections",
    "section": "/sections/{group}",
    "figure": "/figures/{name}",
}
"""Where each question about a run is asked, below the run; choices that are not in the path go into the query."""

_PARQUET = "application/vnd.apache.parquet"
_SECONDS_TO_ANSWER = 120.0
"""Figures of a large run are drawn when they are asked for."""


class Client:
    """A service.

    Args:
        url: where it answers, such as `http://127.0.0.1:8000`.
        token: what `theodolite token create` printed; None where the service asks for none.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(headers=headers, timeout=_SECONDS_TO_ANSWER)
        self._has_token = token is not None

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def _repr_html_(self) -> str:
        return html_table("Theodolite service", {"url": self.url, "token": "given" if self._has_token else "none"})

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def runs(self, model: str | None = None, contrast: str | None = None) -> pd.DataFrame:
        """Return the complete runs, newest first, a row for each.

        Args:
            model: part of the model's name.
            contrast: a contrast that runs must have.
        """
        items = self.ask("/v1/runs", model=model, contrast=contrast, limit=1000)["items"]
        columns = ["run_id", "name", "model", "sets", "contrasts", "analyses", "state", "created"]
        frame = pd.DataFrame(items, columns=columns)
        return frame.assign(created=pd.to_datetime(frame["created"], utc=True))

    def run(self, run_id: str) -> RunReader:
        """Return one run; raises RunNotFoundError for one that is not there."""
        reader = RunReader(run_id, _Served(self, run_id))
        reader.describe()
        return reader

    def compare(self, run_ids: Sequence[str], statistic: str, **choices: Any) -> pd.DataFrame:
        """Return the same curve of several runs on relative depth, a row for each point.

        Its `attrs` hold the statistic's `description`, and `milestones`: for each run where the debiased cosine is
        least, and where its sets first separate.

        Args:
            run_ids: the runs.
            statistic: any curve along depth.
            choices: `contrast` or `set`, `site`, `position`; `bound`, the AUROC from which on sets are separated.

        Raises:
            SpecError: there is no such statistic or label.
            RunNotFoundError: there is no such run.
        """
        content = self.ask("/v1/compare", run=list(run_ids), statistic=statistic, **choices)
        frame = pd.DataFrame(content["items"]).astype({"value": float, "low": float, "high": float})
        frame.attrs = {"description": content["description"], "milestones": content["milestones"]}
        return frame

    def check(self, spec: Mapping[str, Any] | str | Path) -> dict[str, Any]:
        """Return a spec as the service understands it, and its id; raises SpecError for one that it would not take."""
        content: dict[str, Any] = self.send("POST", "/v1/spec/check", json=_spec(spec)).json()
        return content

    def submit(self, spec: Mapping[str, Any] | str | Path) -> "Job":
        """Submit a survey: a dictionary, or a YAML or JSON file. The same spec again is the same job.

        Raises:
            SpecError: the survey asks for something that cannot be asked.
            ClusterError: the service has no cluster, or it cannot be reached.
        """
        return Job(self, self.send("POST", "/v1/jobs", json=_spec(spec)).json())

    def ask(self, path: str, **choices: Any) -> dict[str, Any]:
        """Return the JSON at a path, all its pages in one; a choice of None is not made."""
        chosen = {name: choice for name, choice in choices.items() if choice is not None}
        content: dict[str, Any] = self.send("GET", path, params=chosen).json()
        while content.get("next"):
            page = self.send("GET", path, params={**chosen, "cursor": content["next"]}).json()
            content = {**page, "items": [*content["items"], *page["items"]]}
        return content

    def send(self, method: str, path: str, **request: Any) -> httpx.Response:
        """Return the answer to a request; raises ServiceError, or what the service says went wrong."""
        try:
            response = self._http.request(method, self.url + path, **request)
        except httpx.TimeoutException as error:
            raise ServiceError(f"{self.url} did not answer within {_SECONDS_TO_ANSWER:.0f} s; ask again") from error
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise ServiceError(
                f"cannot reach {self.url}: {error}; start it with `theodolite serve`, or give its URL, such as "
                "http://127.0.0.1:8000"
            ) from error
        if response.is_success:
            return response
        raise _problem(response, self.url)


@dataclass(frozen=True)
class _Served:
    """A run that a service answers for."""

    client: Client
    run_id: str

    @property
    def place(self) -> str:
        return self.client.url

    def ask(self, what: str, **choices: Any) -> dict[str, Any]:
        path, others = self._path(what, choices)
        return self.client.ask(path, **others)

    def table(self, name: str) -> bytes:
        path, _ = self._path("table", {"name": name})
        return self.client.send("GET", path, headers={"Accept": _PARQUET}).content

    def _path(self, what: str, choices: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        fields = {name for _, name, _, _ in Formatter().parse(_PATHS[what]) if name}
        inside = {name: quote(str(choices[name]), safe="") for name in fields}
        others = {name: choice for name, choice in choices.items() if name not in fields}
        return f"/v1/runs/{quote(self.run_id, safe='')}{_PATHS[what].format(**inside)}", others


class Job:
    """A survey that was submitted.

    Args:
        client: the service.
        content: what it said of the job.
    """

    def __init__(self, client: Client, content: Mapping[str, Any]) -> None:
        self._client = client
        self.id: str = content["id"]
        self.model: str = content["model"]

    def __repr__(self) -> str:
        return f"Job({self.id[:12]}…, {self.model!r}, {self._client.url!r})"

    def _repr_html_(self) -> str:
        now = self.describe()
        rows = {"model": now["model"], "state": now["state"], "reason": now["reason"] or ""}
        rows["prompts"] = said_progress(now)
        return html_table(f"{now['name'] or 'job'} {self.id[:12]}…", {**rows, "run": now["run_id"] or ""})

    def describe(self) -> dict[str, Any]:
        """Return everything that the service says of the job now."""
        return self._client.ask(f"/v1/jobs/{self.id}")

    @property
    def state(self) -> str:
        """`queued`, `running`, `succeeded`, `failed`, `stopped` or `lost`."""
        return str(self.describe()["state"])

    @property
    def progress(self) -> dict[str, dict[str, int]]:
        """Prompts committed and in all, `done` and `total`, by set; none before the run has begun."""
        progress: dict[str, dict[str, int]] = self.describe()["progress"]
        return progress

    def logs(self) -> str:
        """Return what the job's last attempt has printed."""
        return self._client.send("GET", f"/v1/jobs/{self.id}/logs").text

    def stop(self) -> None:
        """Stop the job; what was captured stays, and submitting the same spec again goes on."""
        self._client.send("DELETE", f"/v1/jobs/{self.id}")

    def wait(self, timeout: float | None = None) -> RunReader:
        """Wait until the job has ended, showing how far it is, and return its run.

        Args:
            timeout: seconds; None waits for as long as it takes. The job goes on either way.

        Raises:
            JobError: the job failed, was stopped, or has looked lost for half a minute, with the reason; or the time is
                over.
        """
        now = wait_for_end(self.describe, timeout)
        return self._client.run(now["run_id"])


def _spec(spec: Mapping[str, Any] | str | Path) -> dict[str, Any]:
    """Return a spec as JSON has it; a file is checked here already, so that errors name it."""
    if isinstance(spec, Mapping):
        return dict(spec)
    return read_spec(Path(spec)).model_dump(mode="json", exclude_unset=True)


def _problem(response: httpx.Response, url: str) -> TheodoliteError:
    """Return the error that an answer stands for: our own by the last part of its type, or else by its status."""
    try:
        content = response.json()
        kind, detail = content["type"].removeprefix("urn:theodolite:"), content["detail"]
    except (ValueError, KeyError, TypeError, AttributeError):
        said = f"{response.status_code} {response.reason_phrase}".strip()
        return ServiceError(f"{url} answered {said} and not as a Theodolite service does; is the URL right?")
    if response.status_code in (401, 403) and kind in ("unauthorised", "scope"):
        return ServiceError(f"{url}: {detail}; give it one: Client(url, token=…), from `theodolite token create`")
    by_status: dict[int, type[TheodoliteError]] = {422: SpecError, 503: ClusterError}
    return _kinds().get(kind, by_status.get(response.status_code, TheodoliteError))(detail)


def _kinds() -> dict[str, type[TheodoliteError]]:
    """Return the errors by how problems name them: `run-not-found` is RunNotFoundError."""
    found: list[type[TheodoliteError]] = [TheodoliteError]
    for error in found:  # which grows meanwhile
        found += error.__subclasses__()
    named = {error.kind(): error for error in found}
    return {**named, "incomplete": ResultsNotFoundError, "section-not-found": ResultsNotFoundError}
