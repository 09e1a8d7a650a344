"""Rehearse deploy/slurm on a real Slurm: one controller, and three nodes on this machine, of which one is broken.

The script submits a survey to one node, and to two nodes of which one loses its Ray during the capture. It lets a job
run into the end of its time, which must requeue it, cancels another one, and runs a capture with the statistics in a
dependent job. It ends the step of the workers, after which the survey must continue on the head's node, and kills the
head, after which the job must fail at once, as it must on three nodes if Ray starts on two of them only. After each, no
process and no folder of the job may stay, also on the nodes. The results must equal those of a survey without Slurm,
bit by bit.

It needs root, and Debian's packages slurmctld, slurmd, slurm-client and munge. The nodes have their own host names and
folders /tmp, but share the network and the cores.

Usage: python deploy/rehearsal/slurm.py
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import yaml
from checks import RECORDS, ROOT, say, spec_of, wait_for

import theodolite

NODES = ("node1", "node2", "node3")
BROKEN = "node3"
"""The node on which Ray does not start; Slurm gives it to jobs of three nodes only."""

CONFIGURATION = """
ClusterName=rehearsal
SlurmctldHost=localhost
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
SlurmctldPort=17001
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=30
MpiDefault=none
SchedulerParameters=batch_sched_delay=1,sched_interval=5
{nodes}
PartitionName=all Nodes=node[1-3] Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """Slurm's daemons, and the folder that the nodes share."""

    def __init__(self, folder: Path) -> None:
        """Write the configuration; the folder must not be in /tmp, which each node has for itself."""
        self.folder = folder
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        lines = [
            f"NodeName={name} NodeHostname=localhost Port={17011 + index} CPUs=2 RealMemory=4000 Weight={1 + index}"
            for index, name in enumerate(NODES)
        ]
        (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder, nodes="\n".join(lines)))
        self.environment = {
            **os.environ,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "THEODOLITE_STORE": str(folder / "store"),
        }
        for name in ("state", "jobs", *(f"spool.{node}" for node in NODES)):
            (folder / name).mkdir()

    @contextmanager
    def started(self) -> Iterator[None]:
        """Start the daemons, and stop them when the context ends."""
        if subprocess.run(["pgrep", "-x", "munged"], capture_output=True, check=False).returncode:
            Path("/run/munge").mkdir(exist_ok=True)
            shutil.chown("/run/munge", "munge", "munge")
            subprocess.run(["su", "-s", "/bin/sh", "munge", "-c", "/usr/sbin/munged"], check=True)
        commands = {"slurmctld": ["slurmctld", "-D"]}
        for node in NODES:
            own = f"mount -t tmpfs tmpfs /tmp && hostname {node} && exec slurmd -D -N {node}"
            if node == BROKEN:
                own = f"mount --bind /bin/false {shlex.quote(str(Path(sys.executable).parent / 'ray'))} && {own}"
            commands[node] = ["unshare", "--mount", "--uts", "sh", "-c", own]
        try:
            for name, command in commands.items():
                log = (self.folder / f"{name}.log").open("wb")
                self.daemons[name] = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
            wait_for(lambda: self.run("sinfo", "-h", "-t", "idle", "-o", "%D", check=False).strip() == "3", "the nodes")
            yield
        finally:
            try:
                self.run("scancel", "--user=root", check=False)  # of a rehearsal that was interrupted
                wait_for(lambda: not self.processes(), "all jobs to end", seconds=60)
            finally:
                for daemon in reversed(self.daemons.values()):
                    daemon.terminate()
                    daemon.wait()

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command of Slurm, and return what it prints."""
        done = subprocess.run(
            command, env=self.environment, cwd=self.folder / "jobs", capture_output=True, text=True, check=False
        )
        if check and done.returncode:
            raise SystemExit(f"{' '.join(command)}: {done.stderr}")
        return done.stdout

    def submit(self, number: int, *options: str, script: str = "survey", words: tuple[str, ...] = ()) -> str:
        """Submit a survey of its own size, and return the job's id."""
        spec = self.folder / "jobs" / f"survey{number}.yaml"
        spec.write_text(yaml.safe_dump(spec_of(f"slurm {number}", 16 + number)))
        common = ["--parsable", "--gpus-per-node=0", "--mem=0", "--overcommit"]
        path = str(ROOT / f"deploy/slurm/{script}.sbatch")
        return self.run("sbatch", *common, *options, path, str(spec), *words).strip()

    def state(self, job: str) -> str:
        """Return the state of a job, such as RUNNING."""
        return self._field(job, "JobState")

    def _field(self, job: str, name: str) -> str:
        fields = dict(word.split("=", 1) for word in self.run("scontrol", "show", "job", job).split() if "=" in word)
        return fields[name]

    def restarts(self, job: str) -> int:
        """Return how often a job was requeued."""
        return int(self._field(job, "Restarts"))

    def wait(self, job: str, seconds: float = 600) -> str:
        """Wait until a job ends, and return its state."""
        going = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED")
        wait_for(lambda: self.state(job) not in going, f"job {job}", seconds=seconds)
        return self.state(job)

    def processes(self) -> list[psutil.Process]:
        """Return the processes of Ray and of surveys whose files lie in a job's scratch folder."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = " ".join(process.info["cmdline"] or [])
            if re.search(r"/tmp/ray-\d+\.", words) or str(self.folder / "jobs") in words:
                found.append(process)
        return found

    def assert_nothing_stays(self) -> None:
        """Raise SystemExit if processes or folders of a job are left."""
        wait_for(lambda: not self.processes(), "the processes of the job to end", seconds=60)
        folders = [Path(f"/proc/{self.daemons[node].pid}/root/tmp") for node in NODES]  # as the node sees its /tmp
        if left := [str(path) for folder in (self.folder / "jobs", *folders) for path in folder.glob("*ray-*")]:
            raise SystemExit(f"folders of a job are left: {left}")


def compare(slurm: Slurm, number: int) -> list[str]:
    """Survey the same prompts without Slurm, and return what differs."""
    spec, undisturbed = slurm.folder / "jobs" / f"survey{number}.yaml", slurm.folder / "undisturbed"
    slurm.run("theodolite", "survey", str(spec), "--store", str(undisturbed))
    run_id = max((undisturbed / "runs").iterdir(), key=lambda path: path.stat().st_mtime).name
    command = [sys.executable, "-", slurm.environment["THEODOLITE_STORE"], str(undisturbed), run_id]
    found = subprocess.run(command, input=RECORDS, capture_output=True, text=True, check=True).stdout
    return list(json.loads(found)["problems"])


def is_halfway(slurm: Slurm, number: int) -> bool:
    """Return whether some shards of a survey are committed."""
    records = (slurm.folder / "store/runs").glob("*/run.json")
    runs = [record.parent for record in records if f'"slurm {number}"' in record.read_text()]
    return any(list(run.glob("shards/*/*.json")) for run in runs)


def rehearse(slurm: Slurm) -> Iterator[dict[str, Any]]:
    """Yield what happened to each job."""
    begin = time.monotonic()

    def result(number: int, fault: str, state: str, expected: str = "COMPLETED", **more: Any) -> dict[str, Any]:
        nonlocal begin
        slurm.assert_nothing_stays()
        problems = compare(slurm, number) if state == "COMPLETED" else []
        if state != expected:
            problems.append(f"the job is {state}, not {expected}")
        seconds, begin = round(time.monotonic() - begin, 1), time.monotonic()
        return {"fault": fault, "state": state, "problems": problems, **more, "seconds": seconds}

    job = slurm.submit(1, "--nodes=1", "--cpus-per-task=2")
    yield result(1, "none, one node", slurm.wait(job))

    job = slurm.submit(2, "--nodes=2", "--cpus-per-task=1", words=("--replicas", "2"))
    wait_for(lambda: is_halfway(slurm, 2), "the survey to be halfway")
    (raylet,) = [one for one in slurm.processes() if one.name() == "raylet" and is_on(one, "node2")]
    raylet.kill()
    yield result(2, "Ray of one of two nodes killed", slurm.wait(job))

    job = slurm.submit(3, "--nodes=1", "--cpus-per-task=2", "--time=2", "--signal=B:USR1@90")
    wait_for(lambda: slurm.restarts(job) == 1, "the job to be requeued", seconds=240)
    slurm.run("scontrol", "update", f"JobId={job}", "TimeLimit=10")
    slurm.run("scontrol", "release", job, check=False)
    yield result(3, "end of the time", slurm.wait(job), restarts=slurm.restarts(job))

    job = slurm.submit(4, "--nodes=2", "--cpus-per-task=1")
    wait_for(lambda: is_halfway(slurm, 4), "the survey to begin")
    slurm.run("scancel", job)
    yield result(4, "cancelled", slurm.wait(job), "CANCELLED")

    job = slurm.submit(5, "--nodes=1", "--cpus-per-task=2", "--export=ALL,COMMAND=capture")
    after = slurm.submit(5, "--cpus-per-task=2", f"--dependency=afterok:{job}", script="statistics")
    yield result(5, "none, statistics in a dependent job", slurm.wait(after), capture=slurm.state(job))

    job = slurm.submit(6, "--nodes=2", "--cpus-per-task=1", words=("--replicas", "2"))
    wait_for(lambda: is_halfway(slurm, 6), "the survey to be halfway")
    slurm.run("scancel", f"{job}.1")  # the head's step is 0
    yield result(6, "the step of the workers cancelled", slurm.wait(job))

    job = slurm.submit(7, "--nodes=2", "--cpus-per-task=1", words=("--replicas", "2"))
    wait_for(lambda: is_halfway(slurm, 7), "the survey to be halfway")
    (head,) = [one for one in slurm.processes() if one.name() == "gcs_server"]
    head.kill()
    yield result(7, "Ray's head killed", slurm.wait(job, seconds=60), "FAILED")

    job = slurm.submit(8, "--nodes=3", "--cpus-per-task=1")
    yield result(8, "Ray starts on two of three nodes only", slurm.wait(job, seconds=120), "FAILED")


def is_on(process: psutil.Process, node: str) -> bool:
    """Return whether a process runs on a node: it has the node's host name in its namespace."""
    command = ["nsenter", "--target", str(process.pid), "--uts", "hostname"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() == node


def main() -> None:
    """Run the rehearsal and print its result as one JSON object."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/var/tmp"))
    slurm, found = Slurm(folder), []
    try:
        with slurm.started():
            for one in rehearse(slurm):
                say(json.dumps(one))
                found.append(one)
    except BaseException:
        for log in sorted((folder / "jobs").glob("slurm-*.out"))[-1:]:
            say(f"--- {log}:\n{log.read_text()[-3000:]}")
        say(f"the logs are in {folder}")
        raise
    version = slurm.run("sinfo", "--version", check=False).strip()
    shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({"date": time.strftime("%Y-%m-%d"), "slurm": version, "jobs": found}, indent=1))
    if any(one["problems"] for one in found):
        raise SystemExit("a survey differs from the one without Slurm")


if __name__ == "__main__":
    say(f"Theodolite {theodolite.__version__}")
    main()
