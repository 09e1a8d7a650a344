"""A local stand-in for the Hugging Face hub: serves model and dataset repositories out of a folder.

The folder holds `models/ORG/NAME` and `datasets/ORG/NAME`, flat; each has one commit, also called `main`.
"""

import hashlib
import json
import re
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
        if match["revision"] not in (None, "main", COMMIT):
            return self._refuse("RevisionNotFound")
        if match.re is _INFO:
            files = [{"rfilename": path.name} for path in sorted(repo.iterdir())]
            return self._send_json({"id": match["repo"], "sha": COMMIT, "siblings": files})
        if match.re is _TREE and match["folder"] is None:
            return self._send_json([_entry(path) for path in sorted(repo.iterdir())])
        if match.re is _FILE and (repo / match["file"]).is_file():
            content = (repo / match["file"]).read_bytes()
            return self._send(200, content, {"ETag": f'"{_oid(content)}"', "X-Repo-Commit": COMMIT})
        return self._refuse("EntryNotFound")

    do_HEAD = do_GET

    def log_message(self, *_: Any) -> None:
        """Stay silent: what was asked is in `asked`."""

    def _send_json(self, answer: Any) -> None:
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _refuse(self, code: str) -> None:
        self._send(404, code.encode(), {"X-Error-Code": code, "X-Repo-Commit": COMMIT})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _entry(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    return {"type": "file", "path": path.name, "size": len(content), "oid": _oid(content)}


def _oid(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


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
