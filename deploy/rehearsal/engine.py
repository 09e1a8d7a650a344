"""Run docker-compose.yml for a rehearsal, by Docker or by Podman with podman-compose."""

import json
import os
import secrets
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

from checks import ROOT, say

PROJECT = "theodolite-rehearsal"
IMAGES = {target: f"theodolite-{target}:rehearsal" for target in ("api", "jobs")}  # compose.yml names them
PROMETHEUS = "theodolite-prometheus:rehearsal"


class Engine:
    """The containers of the compose file.

    Attributes:
        program: `docker` or `podman`.
        folder: where the secrets of the rehearsal lie.
    """

    def __init__(self, folder: Path) -> None:
        """Choose Docker if its engine answers, and Podman otherwise."""
        has_docker = shutil.which("docker") and subprocess.run(["docker", "info"], capture_output=True).returncode == 0
        self.program = "docker" if has_docker else "podman"
        compose = ["docker", "compose"] if has_docker else [os.environ.get("PODMAN_COMPOSE", "podman-compose")]
        files = ["-f", str(ROOT / "docker-compose.yml"), "-f", str(ROOT / "deploy/rehearsal/compose.yml")]
        self._compose = [*compose, "--project-name", PROJECT, "--profile", "cpu", *files]
        self.folder = folder
        self.environment = {
            **os.environ,
            "REHEARSAL_SECRETS": str(folder),
            "REHEARSAL_PROMETHEUS": PROMETHEUS,
            "THEODOLITE_REPLICAS": "2",
        }
        for name in ("ray_token", "metrics_token", "grafana_password"):
            (folder / name).write_text(secrets.token_hex(16))
            (folder / name).chmod(0o644)

    def build(self) -> None:
        """Build the images, from the cache where nothing changed.

        BASE names another Python image, and BUILD_OPTIONS gives more options.
        """
        options = shlex.split(os.environ.get("BUILD_OPTIONS", ""))
        options += ["--format", "docker"] if self.program == "podman" else []
        base = os.environ.get("BASE")
        builds = {
            image: ["-f", "deploy/Dockerfile", "--target", target, *(["--build-arg", f"PYTHON={base}"] if base else [])]
            for target, image in IMAGES.items()
        }
        of_prometheus = ["-f", "deploy/rehearsal/prometheus.Dockerfile"]
        builds[PROMETHEUS] = [*of_prometheus, *(["--build-arg", f"BASE={base}"] if base else [])]
        for image, words in builds.items():
            say(f"building {image}")
            command = [self.program, "build", *words, *options, "--tag", image, "."]
            subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)

    def compose(self, *words: str, check: bool = True) -> str:
        """Run a compose command, and return what it prints."""
        return self._run([*self._compose, *words], check=check)

    def run(self, *words: str, check: bool = True) -> str:
        """Run a command of the engine, and return what it prints."""
        return self._run([self.program, *words], check=check)

    def execute(self, container: str, *command: str, text: str = "") -> str:
        """Run a command in a container with a standard input, and return what it prints."""
        return self._run([self.program, "exec", "-i", container, *command], text)

    def containers(self, service: str, *, stopped: bool = False) -> list[str]:
        """Return the names of the running containers of a service, or of all of them."""
        labels = {"com.docker.compose.project": PROJECT, "com.docker.compose.service": service}
        filters = [word for label, value in labels.items() for word in ("--filter", f"label={label}={value}")]
        return sorted(self.run("ps", *(["--all"] if stopped else []), *filters, "--format", "{{.Names}}").split())

    def networks(self, container: str) -> list[str]:
        """Return the names of a container's networks."""
        return list(self._inspect(container)["NetworkSettings"]["Networks"])

    def is_healthy(self, container: str) -> bool:
        """Return whether the health check of a container succeeds."""
        if self.program == "podman":  # runs checks by itself only under systemd
            check = subprocess.run(["podman", "healthcheck", "run", container], capture_output=True, check=False)
            return check.returncode == 0
        return bool(self._inspect(container)["State"]["Health"]["Status"] == "healthy")

    def _inspect(self, container: str) -> dict[str, Any]:
        return dict(json.loads(self.run("inspect", container))[0])

    def _run(self, command: list[str], text: str = "", *, check: bool = True) -> str:
        done = subprocess.run(
            command, input=text, env=self.environment, cwd=ROOT, capture_output=True, text=True, check=False
        )
        if check and done.returncode:
            raise SystemExit(f"{shlex.join(command[:12])} …: {done.stderr[-2000:]}")
        return done.stdout
