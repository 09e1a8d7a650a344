"""A local stand-in for the Hugging Face hub: serves model and dataset repositories out of a folder.

The folder holds `models/ORG/NAME` and `datasets/ORG/NAME`, at the commit COMMIT, also called `main`. Another commit is
a folder `NAME@REVISION` beside it.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"

_INFO = re.compile(r"/api/(?P<kind>models|datasets)/(?P<repo>[^/]+/[^/]+)(/revision/(?P<revision>[^/]+))?")
_TREE = re.compile(r"/api/(?P<kind>models|datasets)/(?P<repo>[^/]+/[^/]+)/tree/(?P<revision>[^/]+)(?P<folder>/.+)?")
_FILE = re.compile(r"(/(?P<kind>datasets))?/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    commit = COMMIT

    def __init__(self, root: Path, asked: list[str], *arguments: Any) -> None:
        self.root, self.asked = root, asked
        super().__init__(*arguments)

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.asked.append(f"{self.command} {path}")
        match = next((found for rule in (_TREE, _FILE, _INFO) if (found := rule.fullmatch(path))), None)
        repo = self.root / (match["kind"] or "models") / match["repo"] if match else None
        if match is None or repo is None or not repo.is_dir():
            return self._refuse("RepoNotFound")
        self.commit = COMMIT
        if match["revision"] not in (None, "main", COMMIT):
            self.commit = match["revision"]
            repo = repo.with_name(f"{repo.name}@{self.commit}")
            if not repo.is_dir():
                return self._refuse("RevisionNotFound")
        if match.re is _INFO:
            files = [{"rfilename": str(path.relative_to(repo))} for path in sorted(repo.rglob("*")) if path.is_file()]
            return self._send_json({"id": match["repo"], "sha": self.commit, "siblings": files})
        if match.re is _TREE and (folder := repo / (match["folder"] or "").strip("/")).is_dir():
            recursive = "recursive=true" in urlsplit(self.path).query.lower()
            paths = folder.rglob("*") if recursive else folder.iterdir()
            return self._send_json([_entry(repo, path) for path in sorted(paths)])
        if match.re is _FILE and (repo / match["file"]).is_file():
            return self._send_file((repo / match["file"]).read_bytes())
        return self._refuse("EntryNotFound")

    do_HEAD = do_GET

    def log_message(self, *_: Any) -> None:
        """Stay silent: what was asked is in `asked`."""

    def _send_file(self, content: bytes) -> None:
        headers = {"ETag": f'"{_oid(content)}"', "X-Repo-Commit": self.commit, "Accept-Ranges": "bytes"}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            return self._send(200, content, headers)
        start, stop = int(wanted[1]), int(wanted[2] or len(content) - 1) + 1
        headers["Content-Range"] = f"bytes {start}-{min(stop, len(content)) - 1}/{len(content)}"
        return self._send(206, content[start:stop], headers)

    def _send_json(self, answer: Any) -> None:
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _refuse(self, code: str) -> None:
        self._send(404, code.encode(), {"X-Error-Code": code, "X-Repo-Commit": self.commit})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _entry(repo: Path, path: Path) -> dict[str, Any]:
    name = str(path.relative_to(repo))
    if path.is_dir():
        return {"type": "directory", "path": name, "size": 0, "oid": _oid(name.encode())}
    content = path.read_bytes()
    return {"type": "file", "path": name, "size": len(content), "oid": _oid(content)}


def _oid(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def ask_in_process(code: str, endpoint: str, home: Path, questions: Any, **environment: str) -> dict[str, Any]:
    """Run code in a new process, with the questions as JSON on standard input; return the JSON that it prints.

    The libraries read their environment when they are imported, so each hub is queried from its own process.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    own = {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(questions),
        env=inherited | own | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@contextmanager
def serve_hub(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve the repositories under `root`; yields the endpoint and the growing list of what was asked."""
    asked: list[str] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, root, asked)) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()
