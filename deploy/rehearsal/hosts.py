"""Rehearse a cluster of several hosts on one machine: network namespaces with addresses of their own.

The hosts share no folder: the store is a bucket on the host of Ray's head. Each other host runs a Ray node and a Dask
worker. Every frame takes 10 ms, and one in a hundred is lost. The clock of one host is three minutes ahead. During a
survey on two hosts, and during one on four, a host is cut off from the network for a minute in the middle of a request
that writes an array of a shard, and let back. The results must equal those of a survey without a cluster, bit by bit.

It needs root, and Debian's packages iproute2, ethtool and faketime.

Usage: python deploy/rehearsal/hosts.py
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import yaml
from checks import RECORDS, ROOT, say, spec_of, wait_for

import theodolite

BIN = Path(sys.executable).parent
DELAY_SECONDS, LOSS = 0.01, 0.01
CUT_OFF_SECONDS = 60
AHEAD_SECONDS = 180
AHEAD = {"LD_PRELOAD": "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1", "FAKETIME": f"+{AHEAD_SECONDS}s"}
BUCKET = "http://10.77.0.10:5000"
STORE = "s3://surveys/store"


class Hosts:
    """The hosts `head`, `host1`, `host2` and so on."""

    def __init__(self, folder: Path, count: int) -> None:
        """Name the hosts, without creating them; the folder gets their logs."""
        self.folder = folder
        self.order = folder / "order"  # see switch.py
        self.names = ["head", *(f"host{index}" for index in range(1, count + 1))]
        self.processes: list[subprocess.Popen[bytes]] = []
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self.environment |= {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "AWS_ACCESS_KEY_ID": "rehearsal",
            "AWS_SECRET_ACCESS_KEY": "not-a-secret",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ENDPOINT": BUCKET,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(16),
            "THEODOLITE_DASK_ADDRESS": "tcp://10.77.0.10:8786",
        }

    def address(self, name: str) -> str:
        """Return the address of a host."""
        return f"10.77.0.{10 + self.names.index(name)}"

    @contextmanager
    def started(self) -> Iterator[None]:
        """Create the hosts and start their services; remove all of it when the context ends."""
        try:
            self._create()
            moto = [str(BIN / "moto_server"), "-H", "10.77.0.10", "-p", "5000"]
            self.start("head", moto)
            self.start("head", ["dask", "scheduler", "--host", "10.77.0.10", "--port", "8786", "--no-dashboard"])
            self.start(
                "head", [*self._ray("head"), "--head", "--port=6379", "--num-cpus=0", "--include-dashboard=false"]
            )
            wait_for(lambda: self._scratch("head").joinpath("ray_current_cluster").exists(), "Ray's head")
            for number, name in enumerate(self.names[1:]):
                more = AHEAD if number == 0 else {}
                self.start(name, [*self._ray(name), "--address=10.77.0.10:6379", "--num-cpus=1"], more)
                worker = ["dask", "worker", "tcp://10.77.0.10:8786", "--host", self.address(name), "--nthreads", "1"]
                self.start(name, [*worker, "--no-dashboard", "--local-directory", str(self.folder / name)], more)
            create = f"import httpx; httpx.put('{BUCKET}/surveys').raise_for_status()"
            wait_for(lambda: self.run("head", "python", "-c", create) == 0, "the bucket")
            yield
        finally:
            self._remove()

    def _create(self) -> None:
        self._remove()
        for name in self.names:
            inside = ["ip", "-n", f"theo-{name}"]
            for command in (
                ["ip", "netns", "add", f"theo-{name}"],
                ["ip", "link", "add", f"t-{name}", "type", "veth", "peer", "name", "eth0", "netns", f"theo-{name}"],
                [*inside, "address", "add", f"{self.address(name)}/24", "dev", "eth0"],
                [*inside, "link", "set", "lo", "up"],
                [*inside, "link", "set", "eth0", "up"],
                ["ip", "link", "set", f"t-{name}", "up"],
            ):
                subprocess.run(command, check=True)
            # The switch needs whole frames with checksums.
            whole = [word for feature in ("tx", "sg", "tso", "gso", "gro") for word in (feature, "off")]
            for prefix, device in (([], f"t-{name}"), (["ip", "netns", "exec", f"theo-{name}"], "eth0")):
                subprocess.run([*prefix, "ethtool", "-K", device, *whole], check=True, capture_output=True)
        ports = [f"t-{name}" for name in self.names]
        program = str(ROOT / "deploy/rehearsal/switch.py")
        switch = [sys.executable, program, str(DELAY_SECONDS), str(LOSS), str(self.order), *ports]
        self.processes.append(subprocess.Popen(switch))

    def _remove(self) -> None:
        for process in self.processes:
            family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            for one in [*family, process]:
                with suppress(psutil.NoSuchProcess, ProcessLookupError):
                    one.kill()
            process.wait()
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", f"theo-{name}"], check=False, capture_output=True)
            subprocess.run(["ip", "link", "delete", f"t-{name}"], check=False, capture_output=True)
            shutil.rmtree(self._scratch(name), ignore_errors=True)

    def _ray(self, name: str) -> list[str]:
        own = f"--node-ip-address={self.address(name)}"
        return ["ray", "start", "--block", own, f"--temp-dir={self._scratch(name)}", "--object-store-memory=100000000"]

    def _scratch(self, name: str) -> Path:
        """Return the folder of a host's Ray; its path is short, because Ray puts sockets there."""
        return Path(f"/tmp/theo-{name}")

    def start(self, name: str, command: list[str], more: dict[str, str] | None = None) -> None:
        """Start a process on a host, with its output in a log file."""
        log = (self.folder / f"{name}-{Path(command[0]).name}.log").open("ab")
        words = ["ip", "netns", "exec", f"theo-{name}", *command]
        environment = self.environment | (more or {})
        self.processes.append(subprocess.Popen(words, env=environment, stdout=log, stderr=log))

    def run(self, name: str, *command: str) -> int:
        """Run a command on a host, and return its exit code."""
        words = ["ip", "netns", "exec", f"theo-{name}", *command]
        return subprocess.run(words, env=self.environment, capture_output=True, check=False, timeout=120).returncode

    def output(self, name: str, *command: str, text: str = "") -> str:
        """Run a command on a host, and return what it prints."""
        words = ["ip", "netns", "exec", f"theo-{name}", *command]
        done = subprocess.run(words, env=self.environment, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command[:4])} …: {done.stderr[-2000:]}")
        return done.stdout

    def cut_at_next_write(self, name: str) -> None:
        """Let the switch cut a host off in the middle of its next write of an array."""
        self.order.write_text(f"t-{name}")

    def cut(self) -> dict[str, Any] | None:
        """Return the request in whose middle the host was cut off; None if that has not happened yet."""
        found = self.order.with_suffix(".cut")
        return dict(json.loads(found.read_text())) if found.exists() else None

    def let_back(self) -> None:
        """Connect the host again."""
        self.order.unlink()


def rehearse(hosts: Hosts) -> dict[str, Any]:
    """Survey while a host is cut off; return the write that was cut, and what differs from a survey on one machine."""
    begin, count = time.monotonic(), len(hosts.names) - 1
    spec = hosts.folder / "spec.yaml"
    spec.write_text(yaml.safe_dump(spec_of(f"hosts {count}", 16 + count)))
    survey = ["theodolite", "survey", str(spec), "--store", STORE, "--ray", "10.77.0.10:6379"]
    hosts.cut_at_next_write("host2")
    hosts.start("head", [*survey, "--replicas", str(count)])
    driver, log = hosts.processes[-1], hosts.folder / "head-theodolite.log"

    def check() -> None:
        if driver.poll() is not None:
            raise SystemExit(f"the survey has ended: {log.read_text()[-2000:]}")

    wait_for(lambda: hosts.cut() is not None, "host2 to write a shard", check, seconds=300)
    write = hosts.cut()
    say(f"host2 is cut off for {CUT_OFF_SECONDS} s in the middle of {write}")
    time.sleep(CUT_OFF_SECONDS)
    hosts.let_back()
    code = driver.wait(timeout=400)
    seconds = round(time.monotonic() - begin, 1)
    said = [line for line in log.read_text().splitlines() if "died" in line or "refused" in line]
    undisturbed = hosts.folder / "undisturbed"
    alone = [str(BIN / "theodolite"), "survey", str(spec), "--store", str(undisturbed)]
    subprocess.run(alone, env={**os.environ, "THEODOLITE_DASK_ADDRESS": ""}, check=True, capture_output=True)
    run_id = next((undisturbed / "runs").iterdir()).name
    found = json.loads(hosts.output("head", sys.executable, "-", STORE, str(undisturbed), run_id, text=RECORDS))
    shutil.rmtree(undisturbed)
    problems = found["problems"]
    return {"hosts": count, "cut": write, "exit_code": code, "problems": problems, "said": said, "seconds": seconds}


def main() -> None:
    """Run the rehearsal and print its result as one JSON object."""
    found = []
    for count in (2, 4):
        folder = Path(tempfile.mkdtemp(prefix="hosts-"))
        hosts = Hosts(folder, count)
        try:
            with hosts.started():
                found.append(rehearse(hosts))
                say(json.dumps(found[-1]))
        except BaseException:
            say(f"the logs are in {folder}")
            raise
        shutil.rmtree(folder, ignore_errors=True)
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "delay_seconds": DELAY_SECONDS,
        "loss": LOSS,
        "clock_ahead_seconds": AHEAD_SECONDS,
    }
    print(json.dumps({**result, "surveys": found}, indent=1))
    if any(one["problems"] or one["exit_code"] for one in found):
        raise SystemExit("a survey failed, or differs from the one without a cluster")


if __name__ == "__main__":
    say(f"Theodolite {theodolite.__version__}")
    main()
