"""Use a Theodolite service from Python: read and compare its runs, and submit surveys."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup

from theodolite.errors import ClusterError, ResultsNotFoundError, RunNotFoundError, ServiceError, SpecError
from theodolite.overview.facts import Badge
from theodolite.overview.tiles import Glyph, Tile
from theodolite.overview.view import Picture
from theodolite.proxies import reach_local_addresses_directly
from theodolite.query.compare import BOUND
from theodolite.query.heads import TOKEN_COLUMNS, Head
from theodolite.run_reader import CACHE_BYTES, RunReader, html_table, run_table, with_numbers
from theodolite.service_errors import error_of, seconds_to_wait
from theodolite.spec import SurveySpec
from theodolite.spec_keywords import GivenSpec, spec_of_keywords
from theodolite.spec_parts import FILE_TYPES, Label, file_type
from theodolite.store.cache import Cache
from theodolite.store.checksums import sha256
from theodolite.store.runs import Run, find_run
from theodolite.submission.waiting import describe_progress, wait_for_end

TIMEOUT_SECONDS = 120.0
"""Default timeout of one request: the service draws the figures of a large run during the request."""

IDLE_SECONDS = 2.0
"""Time after which an idle connection is not used again: the service closes it after 5 s, and loses a request then."""


class Client:
    """A client of one service.

    Args:
        url: URL of the service, such as `http://127.0.0.1:8000`.
        token: the bearer token that `theodolite token create` printed; None if the service needs none.
        timeout_seconds: timeout of one request.
    """

    def __init__(self, url: str, token: str | None = None, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.url, self.timeout_seconds = url.rstrip("/"), timeout_seconds
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        reach_local_addresses_directly()
        limits = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=IDLE_SECONDS)
        self._http = httpx.Client(headers=headers, timeout=timeout_seconds, limits=limits)
        self._has_token = token is not None

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def _repr_html_(self) -> str:
        return html_table("Theodolite service", {"url": self.url, "token": "given" if self._has_token else "none"})

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def runs(self, model: str | None = None, contrast: str | None = None, *, numbers: bool = False) -> pd.DataFrame:
        """Return the complete runs as a table, newest first, one row each; arguments as of `theodolite.runs`."""
        table = run_table(self.ask("/v1/runs", model=model, contrast=contrast, limit=1000)["items"])
        return with_numbers(table, self.run) if numbers else table

    def run(self, run_id: str, *, cache_bytes: int = CACHE_BYTES) -> RunReader:
        """Return one run.

        Its results are read as from a store: the client fetches their objects, compares each with its checksum, and
        caches what it decodes.

        Args:
            run_id: the run's id.
            cache_bytes: size of the cache of results.

        Raises:
            RunNotFoundError: the service has no such run.
            StoreVersionError: the service reads a run of another version than this package.
        """
        run = find_run(self.url, run_id, Cache(cache_bytes), _ServedObjects(self, run_id))
        if run is None:  # it was removed in between
            raise RunNotFoundError(f"{self.url}: there is no run {run_id!r}")
        return _ServedRun(self, run)

    def label(self, run_id: str, **labels: Any) -> dict[str, Any]:
        """Change the labels of a run, and return all of its labels.

        Args:
            run_id: id of the run.
            labels: `name` (None is the name in its spec), `tags` (a list of texts) and `remarks`; labels that are not
                given stay.

        Raises:
            RunNotFoundError: the service has no such run.
            SpecError: a label is too long, has a control character, or is of the wrong type.
        """
        changed = self.send("PATCH", _path_of(run_id), json=labels).json()
        return {name: value for name, value in changed.items() if name != "run_id"}

    def remove(self, run_id: str) -> None:
        """Delete a run with all of its data; the token needs the scope admin. A deleted run cannot be restored.

        Raises:
            RunNotFoundError: the service has no such run.
            ServiceError: the token lacks the scope.
            TheodoliteError: a survey job of the run has not ended.
        """
        self.send("DELETE", _path_of(run_id))

    def compare(
        self,
        run_ids: Sequence[str],
        statistic: str | None = None,
        *,
        contrast: str | Sequence[str] = (),
        set: str | None = None,
        site: str | None = None,
        position: Label | None = None,
        bound: float = BOUND,
    ) -> pd.DataFrame:
        """Return the same curve of several runs on relative depth; arguments and table as of `theodolite.compare`.

        Raises:
            SpecError: there is no such statistic or label.
            RunNotFoundError: the service has no such run.
        """
        choices: dict[str, Any] = {
            "statistic": statistic,
            "set": set,
            "site": site,
            "position": position,
            "bound": bound,
        }
        content = self.ask(
            "/v1/compare",
            run=list(run_ids),
            contrast=[contrast] if isinstance(contrast, str) else list(contrast),
            **choices,
        )
        frame = pd.DataFrame(content["items"]).astype({"value": float, "low": float, "high": float})
        frame.attrs = {name: content[name] for name in ("statistics", "milestones", "auroc_difference")}
        return frame

    def check(self, spec: GivenSpec = None, **sections: Any) -> dict[str, Any]:
        """Return a spec as the service resolves it, and its id; raises SpecError if the service rejects it."""
        return dict(self.send("POST", "/v1/spec/check", json=_content(spec_of_keywords(spec, **sections)[0])).json())

    def submit(self, spec: GivenSpec = None, **sections: Any) -> "Job":
        """Submit a survey and return its job. The same spec is the same job.

        The client uploads the prompt files that the spec names by relative paths: relative to the spec's file, or to
        the working directory for a dictionary. Absolute paths are those of files that the cluster can read.

        Args:
            spec: a dictionary, a YAML or JSON file, or a SurveySpec; None if keywords give all of it.
            sections: sections that replace those of the spec, and `positive`, `negative` and `paired`, as of
                `theodolite.survey`.

        Raises:
            SpecError: the spec is invalid, or a prompt file cannot be read.
            ClusterError: the service has no cluster, or it cannot reach the cluster.
        """
        return Job(self, self.send("POST", "/v1/jobs", json=self._with_uploads(spec, sections)).json())

    def plan(self, spec: GivenSpec = None, *, seconds_to_wait: float = 120.0, **sections: Any) -> dict[str, Any]:
        """Return the estimated tokens, memory, bytes and time of a survey, as `theodolite plan --json` prints them.

        The cluster computes the estimate, which takes up to half a minute. Prompt files are uploaded as by `submit`.

        Raises:
            SpecError: the spec is invalid, or the survey is not possible.
            ClusterError: the service has no cluster, it cannot reach the cluster, or the cluster takes too long.
            ServiceError: the token lacks the scope `submit`.
        """
        content, deadline = self._with_uploads(spec, sections), time.monotonic() + seconds_to_wait
        while (response := self.send("POST", "/v1/spec/estimate", json=content)).status_code == httpx.codes.ACCEPTED:
            if time.monotonic() > deadline:
                raise ClusterError(f"the cluster did not estimate the survey in {seconds_to_wait:g} s; try again later")
            time.sleep(float(response.headers["Retry-After"]))
        return dict(response.json())

    def _with_uploads(self, given: GivenSpec, sections: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of a spec, after uploading the files that it names by relative paths."""
        spec, folder = spec_of_keywords(given, **sections)
        content = _content(spec)
        for prompt_set in content["prompts"].values():
            kind, _, path = prompt_set["source"].partition(":")
            if kind == "file" and not Path(path).is_absolute():
                prompt_set["source"] = self.upload(folder / path)
        return content

    def submit_sentence(self, run_id: str, sentence: str) -> "Job":
        """Submit a small survey of one sentence with the model of a run, and return its job.

        The table `trajectories` of the job's run has the trajectory. The same sentence is the same job.

        Raises:
            RunNotFoundError: the service has no such run.
            ResultsNotFoundError: the run is not complete.
            SpecError: the sentence is blank or too long, or the cluster cannot find the run's model.
            ClusterError: the service has no cluster, or it cannot reach the cluster.
            ServiceError: the token lacks the scope `submit`, or the deployment does not allow the survey.
        """
        checked = self.send("POST", _path_of(run_id, "sentence-spec"), json={"sentence": sentence}).json()
        return self.submit(checked["spec"])

    def upload(self, path: str | Path) -> str:
        """Upload a prompt file (of a type in FILE_TYPES) to the store, and return its `source` for a spec.

        Raises:
            SpecError: the file cannot be read, or its type is not supported.
            TheodoliteError: the service refuses the file, for example because it is too large.
        """
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise SpecError(f"cannot read the prompt file {path}: {error.strerror}") from error
        kind, headers = file_type(Path(path).name), {"Content-Type": "application/octet-stream"}
        if kind is None:
            raise SpecError(f"{path} has no supported suffix; allowed: {', '.join(f'.{one}' for one in FILE_TYPES)}")
        response = self.send("POST", "/v1/uploads", params={"type": kind}, content=content, headers=headers)
        return str(response.json()["source"])

    def uploads(self) -> pd.DataFrame:
        """Return the uploads of the token as a table, last uploaded first: source, bytes, uploaded, expires.

        Raises:
            ServiceError: the token lacks the scope `submit`.
        """
        items = self.ask("/v1/uploads", limit=1000)["items"]
        return pd.DataFrame(items, columns=["source", "bytes", "uploaded", "expires"])

    def remove_upload(self, source: str) -> None:
        """Delete an upload of the token by its source, `upload:NAME`.

        Raises:
            TheodoliteError: the token has no such upload, or a survey job that has not ended reads it.
        """
        self.send("DELETE", f"/v1/uploads/{quote(source.removeprefix('upload:'), safe='')}")

    def ask(self, path: str, **choices: Any) -> dict[str, Any]:
        """Return the JSON at a path, with the items of all pages; `choices` that are None are not sent."""
        chosen = {name: choice for name, choice in choices.items() if choice is not None}
        content: dict[str, Any] = self.send("GET", path, params=chosen).json()
        while content.get("next"):
            page = self.send("GET", path, params={**chosen, "cursor": content["next"]}).json()
            content = {**page, "items": [*content["items"], *page["items"]]}
        return content

    def send(self, method: str, path: str, **request: Any) -> httpx.Response:
        """Return the response to a request; raises ServiceError, or the error of an error response.

        If the service refuses the request because others are in progress, or were sent in the last minute, the client
        waits and repeats it, for as long as its timeout.
        """
        deadline = time.monotonic() + self.timeout_seconds
        while (response := self._send(method, path, request)).status_code == httpx.codes.TOO_MANY_REQUESTS:
            seconds = seconds_to_wait(response)
            if seconds is None or time.monotonic() + seconds > deadline:
                break
            time.sleep(seconds)
        if response.is_success or response.status_code == httpx.codes.NOT_MODIFIED:
            return response
        raise error_of(response, self.url)

    def _send(self, method: str, path: str, request: Mapping[str, Any]) -> httpx.Response:
        try:
            return self._http.request(method, self.url + path, **request)
        except httpx.TimeoutException as error:
            raise ServiceError(f"{self.url} did not respond within {self.timeout_seconds:g} s; retry later") from error
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise ServiceError(
                f"cannot reach {self.url}: {error}; start the service with `theodolite serve`, or pass its URL, such "
                "as http://127.0.0.1:8000"
            ) from error


class _ServedRun(RunReader):
    """A run of a service: its arrays and tables are read from its objects, and the service answers everything else.

    The service has what a client lacks (labels, commit records, the texts of prompts, the untrained twin), and answers
    with one request what would take many objects: a drawn section, an exported file, the tokens of one head.
    """

    def __init__(self, client: Client, run: Run) -> None:
        super().__init__(run)
        self._client = client

    def describe(self) -> dict[str, Any]:
        return self._ask()

    def head(self, layer: int, head: int, circuit: str = "qk", offset: int = 0) -> Head:
        content = self._ask("heads", layer, head, circuit=circuit, offset=offset)
        missing = {name: np.nan for name, value in content.items() if value is None}
        arrays = {"singular_values": np.array(content["singular_values"], np.float64)}
        tokens = pd.DataFrame(content["tokens"], columns=[*TOKEN_COLUMNS]).astype(TOKEN_COLUMNS)
        known = {field.name: content[field.name] for field in fields(Head) if field.name in content}
        written = {contrast: _numbers(tests) for contrast, tests in content["written"].items()}
        return Head(**{**known, **missing, **arrays, "written": written, "tokens": tokens})

    def _figure(self, name: str) -> go.Figure:
        return go.Figure(self._ask("figures", name))

    def overview(self, contrast: str | None = None, *, site: str | None = None, layer: int | None = None) -> Picture:
        chosen = {"contrast": contrast, "site": site, "layer": layer}
        found = self._ask("overview", **{name: value for name, value in chosen.items() if value is not None})
        content = {field.name: found[field.name] for field in fields(Picture)}
        badges = [Badge(**badge) for badge in content["badges"]]
        tiles = [Tile(**tile | {"glyph": _glyph(tile["glyph"])}) for tile in content["tiles"]]
        return Picture(**content | {"badges": badges, "tiles": tiles, "html": Markup(content["html"])})

    def conclusion(self) -> dict[str, Any]:
        return {name: value for name, value in self._ask("conclusion").items() if name != "run_id"}

    def sections(self) -> list[str]:
        return list(self._ask("sections")["items"])

    def section(self, name: str) -> list[dict[str, Any]]:
        return list(self._ask("sections", name)["items"])

    def _prompts(self, set: str, choices: Mapping[str, Any]) -> tuple[list[dict[Any, Any]], dict[str, Any] | None]:
        content = self._ask("prompts", set, **choices, limit=1000)
        return content["items"], content["place"]

    def _prompt(self, set: str, sample: int, choices: Mapping[str, Any]) -> list[dict[Any, Any]]:
        return list(self._ask("prompts", set, sample, **choices)["items"])

    def _export(self, contrast: str, site: str, layers: Sequence[int], position: Label | None, format: str) -> bytes:
        chosen: dict[str, Any] = {"site": site, "layer": list(layers), "format": format}
        if position is not None:
            chosen["position"] = position
        return self._client.send("GET", _path_of(self.id, "export", contrast), params=chosen).content

    def _ask(self, *parts: str | int, **query: Any) -> dict[str, Any]:
        return self._client.ask(_path_of(self.id, *parts), **query)


def _glyph(content: dict[str, Any] | None) -> Glyph | None:
    """Return the glyph of a tile."""
    if content is None:
        return None
    return Glyph(**_numbers(content) | {"scale": tuple(content["scale"])})


def _numbers(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of JSON, which has null for NaN."""
    return {name: np.nan if value is None else value for name, value in content.items()}


class _ServedObjects:
    """The objects of a run of a service, with those methods of an obstore store that readers call."""

    def __init__(self, client: Client, run_id: str) -> None:
        self._client, self._run_id = client, run_id
        self._records: dict[str, bytes] = {}

    def head(self, key: str) -> dict[str, str]:
        """Return the ETag of a record, run.json or COMPLETE, after fetching it if it has changed; raises as `get`."""
        known = self._records.get(key)
        response = self._fetch(key, {} if known is None else {"If-None-Match": f'"{sha256(known)}"'})
        if response.status_code != httpx.codes.NOT_MODIFIED:
            self._records[key] = response.content
        return {"e_tag": sha256(self._records[key])}

    def get(self, key: str) -> "_Object":
        """Return an object; a record is the one whose ETag `head` returned.

        Raises:
            FileNotFoundError: the results have no such object.
            TheodoliteError: the service cannot be reached, or cannot read the run.
        """
        return _Object(self._records.get(key) or self._fetch(key, {}).content)

    def get_range(self, key: str, *, start: int, length: int) -> bytes:
        """Return a part of the activations of a shard; raises as `get`."""
        return self._fetch(key, {"Range": f"bytes={start}-{start + length - 1}"}).content

    def _fetch(self, key: str, headers: dict[str, str]) -> httpx.Response:
        try:
            return self._client.send("GET", _path_of(self._run_id, "objects", *key.split("/")), headers=headers)
        except ResultsNotFoundError as error:
            raise FileNotFoundError(key) from error


@dataclass(frozen=True)
class _Object:
    content: bytes

    def bytes(self) -> bytes:
        return self.content


class Job:
    """A survey job on a service.

    Args:
        client: the client of the service.
        content: the job's description from the service.
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
        rows["prompts"] = describe_progress(now)
        return html_table(f"{now['name'] or 'job'} {self.id[:12]}…", {**rows, "run": now["run_id"] or ""})

    def describe(self) -> dict[str, Any]:
        """Return the job's current description."""
        return self._client.ask(f"/v1/jobs/{self.id}")

    @property
    def state(self) -> str:
        """The state: `queued`, `running`, `succeeded`, `failed`, `stopped` or `lost`."""
        return str(self.describe()["state"])

    @property
    def progress(self) -> dict[str, dict[str, int]]:
        """The committed prompts (`done`) and all prompts (`total`) of each set; empty before the run starts."""
        return dict(self.describe()["progress"])

    def logs(self) -> str:
        """Return the output of the job's last attempt."""
        return self._client.send("GET", f"/v1/jobs/{self.id}/logs").text

    def stop(self) -> None:
        """Stop the job. The store keeps its captured shards, and submitting the same spec again resumes the job."""
        self._client.send("DELETE", f"/v1/jobs/{self.id}")

    def wait(self, timeout: float | None = None, *, poll_seconds: float = 2.0, lost_seconds: float = 30.0) -> RunReader:
        """Wait until the job has ended, print its progress, and return its run.

        Args:
            timeout: limit in seconds; None waits without a limit. The job continues after the timeout.
            poll_seconds: time between two requests.
            lost_seconds: time for which the job may look lost, because a cluster's dashboard may restart.

        Raises:
            JobError: the job failed, was stopped, has been lost for `lost_seconds`, or still runs after the timeout.
        """
        now = wait_for_end(self.describe, timeout, poll_seconds=poll_seconds, lost_seconds=lost_seconds)
        return self._client.run(now["run_id"])


def _path_of(run_id: str, *parts: str | int) -> str:
    """Return the path of a run, or of a resource below it."""
    return "/".join(["/v1/runs", *(quote(str(part), safe="") for part in (run_id, *parts))])


def _content(spec: SurveySpec) -> dict[str, Any]:
    """Return a spec as JSON has it, without the defaults."""
    return spec.model_dump(mode="json", exclude_unset=True)
