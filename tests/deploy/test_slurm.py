"""The Slurm example, with stand-ins for Slurm, Ray and the survey: what it starts, and that nothing of it stays."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

SCRIPT = Path(__file__).parents[2] / "deploy/slurm/survey.sbatch"
STATISTICS = SCRIPT.with_name("statistics.sbatch")
SECONDS = 120  # of patience: beside other tests, a job that takes two seconds takes many

STAND_INS = {
    # Runs what it is given here; of a step on several nodes it is one, and another one if that is broken.
    "srun": """#!/usr/bin/env bash
        echo "srun $*" >> "$CALLS"
        while [[ $1 == --* ]]; do shift; done
        if [[ $1 == rm && ${COMPLETING:-} ]]; then echo "Slurm job 77 has expired" >&2; exit 1; fi
        export SLURMD_NODENAME=node2
        if [[ ${BROKEN:-} && "$*" == *--address* ]]; then FAILURES=3 SLURMD_NODENAME=$BROKEN "$@" & fi
        exec "$@"
    """,
    "scontrol": """#!/usr/bin/env bash
        case $1 in requeue) echo "scontrol $*" >> "$CALLS";; *) printf 'node1\\nnode2\\n';; esac
    """,
    # Shortens the job's pauses of a second or two: what it waits for takes milliseconds here.
    "sleep": """#!/usr/bin/env bash
        case $1 in 1|2) set -- 0.1;; esac
        exec /bin/sleep "$1"
    """,
    "squeue": """#!/usr/bin/env bash
        printf '70\\n77\\n'
        exit "${SQUEUE_EXIT:-0}"
    """,
    "ray": """#!/usr/bin/env bash
        trap 'echo "ray stopped" >> "$CALLS"; exit' TERM
        if [[ "$*" == *--address* && ${FAILURES:-0} -gt $(grep -c "^worker failed" "$CALLS") ]]; then
            echo "worker failed" >> "$CALLS"; exit 1
        fi
        for option in "$@"; do
            case $option in --temp-dir=*) temp=${option#*=};; esac
        done
        folders=$(stat -c %a "${RAY_AUTH_TOKEN_PATH%/*}" "${temp%/*}" | xargs)
        echo "ray $* folders=$folders mode=$RAY_AUTH_MODE drain=$RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S" >> "$CALLS"
        mkdir -p -m 777 "$temp"
        case "$*" in *--head*) echo 127.0.0.1:6000 > "$temp/ray_current_cluster";; esac
        echo 1 >> "$JOINED"
        while :; do sleep 0.05; done
    """,
    "theodolite": """#!/usr/bin/env bash
        exec sleep "${SURVEY_SECONDS:-0}" &
        trap 'echo "survey stopped" >> "$CALLS"; kill $!; exit 130' TERM
        echo "theodolite $*" >> "$CALLS"
        umask >> "$CALLS"
        while kill -0 $! 2> /dev/null; do sleep 0.05; done  # a signal just before `wait` would end nothing
        exit "${SURVEY_EXIT:-0}"
    """,
}

RAY_MODULE = """
import os
import time
from pathlib import Path

wait = time.sleep
time.sleep = lambda seconds: wait(seconds / 5)

def init(address, **_): assert address == "127.0.0.1:6000"
def nodes(): return [{"Alive": True}] * len(Path(os.environ["JOINED"]).read_text().splitlines())
"""


@pytest.fixture
def job(tmp_path):
    """Yield what starts the job, with changes to its environment; a job that still runs is stopped."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "ray.py").write_text(RAY_MODULE)
    (programs / "python").symlink_to(sys.executable)
    for name, text in STAND_INS.items():
        (programs / name).write_text("\n".join(line.removeprefix("        ") for line in text.splitlines()))
        (programs / name).chmod(0o755)
    (tmp_path / "submitted").mkdir()
    slurm = {"CLUSTER_NAME": "here", "JOB_ID": "77"}
    slurm |= {"JOB_NODELIST": "node[1-2]", "JOB_NUM_NODES": "2", "CPUS_PER_TASK": "16"}
    environment = os.environ | {f"SLURM_{name}": value for name, value in slurm.items()}
    environment |= {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(programs)}
    environment |= {"CALLS": str(tmp_path / "calls"), "JOINED": str(tmp_path / "joined")}
    environment.pop("THEODOLITE_STORE", None)

    started = []

    def start(**changes: str) -> subprocess.Popen:
        started.append(subprocess.Popen(
            ["bash", SCRIPT, "survey.yaml", "--gpus-per-replica", "2"],
            cwd=tmp_path / "submitted", env=environment | changes, stderr=subprocess.PIPE, text=True,
        ))  # fmt: skip
        return started[-1]

    yield start
    for process in started:
        process.terminate()
        process.wait(SECONDS)
        process.stderr.close()


def calls(tmp_path: Path, first: str) -> list[str]:
    return [line for line in (tmp_path / "calls").read_text().splitlines() if line.startswith(first)]


def wait_for_survey(tmp_path: Path) -> None:
    deadline = time.monotonic() + 300
    while not ((tmp_path / "calls").exists() and calls(tmp_path, "theodolite")):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ray_of(job: subprocess.Popen, option: str) -> list[psutil.Process]:
    """Return the processes of the step that starts Ray with an option: the step's shell, and Ray."""
    step = []
    for one in psutil.Process(job.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if option in one.cmdline():
                step.append(one)
    assert len(step) == 2
    return sorted(step, key=lambda one: one.cmdline()[1] != "-c")


def assert_nothing_stays(tmp_path: Path, killed: int = 0) -> None:
    assert len(calls(tmp_path, "ray stopped")) == len(calls(tmp_path, "ray start")) - killed
    assert not list((tmp_path / "submitted").iterdir()), "the token must go"
    (scratch,) = {
        word.split("=")[1] for call in calls(tmp_path, "ray start") for word in call.split() if "temp-dir" in word
    }
    assert not Path(scratch).parent.exists()


def test_ray_starts_on_all_nodes_and_the_survey_on_it(job, tmp_path):
    os.umask(mask := os.umask(0o77))
    assert job().wait(SECONDS) == 0
    head, worker = calls(tmp_path, "ray start")
    assert "--head --port=0 " in head
    assert "--address=127.0.0.1:6000 " in worker
    assert all("folders=700 700 mode=token" in call for call in (head, worker)), "no other user can enter them"
    assert calls(tmp_path, "0") == [f"{mask:04o}"], "the store has the permissions that the user chose"
    steps = calls(tmp_path, "srun --overlap --cpus-per-task=16")
    assert "--nodelist=node1" in steps[0]
    assert "--nodes=1 --ntasks=1 --exclude=node1" in steps[1]
    store = tmp_path / "submitted/theodolite-store"
    survey = f"theodolite survey survey.yaml --store {store} --ray 127.0.0.1:6000 --gpus-per-replica 2"
    assert calls(tmp_path, "theodolite") == [survey]
    assert_nothing_stays(tmp_path)


@pytest.mark.nightly
def test_ray_ends_before_slurm_kills_it(job, tmp_path):
    assert job().wait(SECONDS) == 0
    assert all(call.endswith(" drain=0") for call in calls(tmp_path, "ray start"))
    (folder,) = importlib.util.find_spec("ray").submodule_search_locations
    assert "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S" in Path(folder, "_private/ray_constants.py").read_text()


@pytest.mark.nightly
def test_statistics_can_follow_in_a_job_without_gpus(job, tmp_path):
    assert job(COMMAND="capture").wait(SECONDS) == 0
    assert calls(tmp_path, "theodolite")[0].startswith("theodolite capture survey.yaml --store ")
    example = [line for line in SCRIPT.read_text().splitlines() if "--dependency" in line]
    assert "--kill-on-invalid-dep=yes" in example[0], "else it is pending for ever after a capture that failed"
    assert STATISTICS.read_text().splitlines()[-1] == (
        'exec theodolite survey "$spec" --store "${THEODOLITE_STORE:-$PWD/theodolite-store}"'
    )


@pytest.mark.nightly
def test_one_node_needs_no_other(job, tmp_path):
    assert job(SLURM_JOB_NUM_NODES="1").wait(SECONDS) == 0
    assert len(calls(tmp_path, "ray start")) == 1
    assert_nothing_stays(tmp_path)


def test_a_failed_survey_fails_the_job(job, tmp_path):
    assert job(SURVEY_EXIT="3").wait(SECONDS) == 3
    assert_nothing_stays(tmp_path)


def test_the_end_of_the_time_stops_everything_at_once(job, tmp_path):
    process = job(SURVEY_SECONDS="60")
    wait_for_survey(tmp_path)
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 143
    assert calls(tmp_path, "survey stopped")
    assert_nothing_stays(tmp_path)


def test_nodes_remove_their_folders_when_a_job_is_cancelled(job, tmp_path):
    process = job(SURVEY_SECONDS="60", COMPLETING="1")
    wait_for_survey(tmp_path)
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 143
    assert_nothing_stays(tmp_path)


def test_a_job_is_requeued_before_its_time_ends(job, tmp_path):
    process = job(SURVEY_SECONDS="60")
    wait_for_survey(tmp_path)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(SECONDS) == 143
    assert calls(tmp_path, "scontrol") == ["scontrol requeue 77"]
    assert calls(tmp_path, "survey stopped")
    assert_nothing_stays(tmp_path)


@pytest.mark.nightly
def test_a_job_that_was_requeued_too_often_ends(job, tmp_path):
    process = job(SURVEY_SECONDS="60", SLURM_RESTART_COUNT="20")
    wait_for_survey(tmp_path)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(SECONDS) == 143
    assert "requeued 20 times" in process.stderr.read()
    assert not calls(tmp_path, "scontrol")
    assert calls(tmp_path, "survey stopped")
    assert_nothing_stays(tmp_path)


def test_ray_is_started_again_on_a_node_where_it_failed(job, tmp_path):
    assert job(FAILURES="2").wait(SECONDS) == 0
    assert len(calls(tmp_path, "worker failed")) == 2
    assert_nothing_stays(tmp_path)


@pytest.mark.nightly
def test_a_node_where_ray_fails_again_and_again_does_not_hold_the_allocation(job, tmp_path):
    process = job(FAILURES="3", SECONDS_TO_JOIN="300")
    assert process.wait(SECONDS) == 1
    assert "not all nodes joined; Ray said:" in process.stderr.read()
    assert_nothing_stays(tmp_path)


@pytest.mark.nightly
def test_one_of_many_nodes_where_ray_fails_does_not_hold_the_allocation(job, tmp_path):
    process = job(SLURM_JOB_NUM_NODES="3", BROKEN="node3", SECONDS_TO_JOIN="300")
    assert process.wait(SECONDS) == 1
    assert "not all nodes joined; Ray said:" in process.stderr.read()
    assert len(calls(tmp_path, "worker failed")) == 3
    assert len(calls(tmp_path, "ray start")) == 2
    assert_nothing_stays(tmp_path)


@pytest.mark.nightly
def test_a_job_whose_head_ends_ends_with_the_reason(job, tmp_path):
    process = job(SURVEY_SECONDS="60")
    wait_for_survey(tmp_path)
    # Its step would start it again, as it does on the other nodes: but that would be another cluster.
    ray_of(process, "--head")[1].kill()
    assert process.wait(SECONDS) == 1
    assert "Ray's head on node1 ended during the survey; Ray said:" in process.stderr.read()
    assert calls(tmp_path, "survey stopped")
    assert_nothing_stays(tmp_path, killed=1)


def test_a_survey_continues_without_the_other_nodes(job, tmp_path):
    process = job(SURVEY_SECONDS="60")
    wait_for_survey(tmp_path)
    for one in ray_of(process, "--address=127.0.0.1:6000"):
        one.kill()
    message = "Ray ended on all other nodes; the survey continues on node1 alone"
    assert any(message in line for line in process.stderr)
    children = psutil.Process(process.pid).children(recursive=True)
    running = (one for one in children if one.status() != psutil.STATUS_ZOMBIE)
    (working,) = (one for one in running if one.cmdline()[-1:] == ["60"])
    working.kill()  # the survey ends
    assert process.wait(SECONDS) == 0
    assert not calls(tmp_path, "survey stopped")
    assert_nothing_stays(tmp_path, killed=1)


@pytest.mark.nightly
def test_folders_of_jobs_that_were_killed_are_removed(job, tmp_path):
    for name in (".ray-here-69.old", ".ray-here-70.runs", ".ray-here-77.requeued", ".ray-there-69.runs"):
        (tmp_path / "submitted" / name).mkdir()
    assert job().wait(SECONDS) == 0
    kept = {path.name for path in (tmp_path / "submitted").iterdir()}
    assert kept == {".ray-here-70.runs", ".ray-there-69.runs"}, "job 69 runs on another cluster"


@pytest.mark.nightly
def test_without_an_answer_of_slurm_no_folder_is_removed(job, tmp_path):
    (tmp_path / "submitted/.ray-here-69.perhaps").mkdir()
    assert job(SQUEUE_EXIT="1").wait(SECONDS) == 0
    assert [path.name for path in (tmp_path / "submitted").iterdir()] == [".ray-here-69.perhaps"]


@pytest.mark.nightly
def test_a_node_that_does_not_join_is_reported(job, tmp_path):
    # Enough for the head also on a busy machine: it would be reported as the node that did not start.
    process = job(SLURM_JOB_NUM_NODES="3", SECONDS_TO_JOIN="10")
    assert process.wait(SECONDS) == 1
    assert "not all nodes joined; Ray said:" in process.stderr.read()
    assert not calls(tmp_path, "theodolite")
    assert_nothing_stays(tmp_path)


def test_shellcheck_has_nothing_to_say():
    command = [Path(sys.executable).parent / "shellcheck", SCRIPT, STATISTICS]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
