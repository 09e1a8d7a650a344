"""The identity of processes: a number alone may be that of another process."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from theodolite import processes
from theodolite.processes import has_ended, process_of

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system has no /proc")

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_a_process_has_not_ended_until_it_is_killed():
    with subprocess.Popen(SLEEP) as child:
        process = process_of(child.pid)
        assert process is not None
        assert has_ended(process) is False
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has waited for it
        assert process_of(child.pid) is None
        assert has_ended(process) is True
    assert has_ended(process) is True


def test_another_process_with_the_same_number_is_another_process():
    own = process_of(os.getpid())
    assert has_ended(own) is False
    assert has_ended(replace(own, started=own.started - 1)) is True
    assert has_ended(replace(own, pid=10**30)) is True


def test_nothing_is_known_of_a_process_of_another_machine_or_of_a_system_without_identities(monkeypatch):
    own = process_of(os.getpid())
    gone = replace(own, pid=2**22 + 1)  # larger than any number of Linux
    assert has_ended(gone) is True
    assert has_ended(replace(gone, machine="another boot")) is None
    assert has_ended(replace(gone, machine="")) is None
    monkeypatch.setattr(processes, "_BOOT_ID", Path("/missing"))
    assert has_ended(gone) is None
    assert has_ended(process_of(os.getpid())) is None


def test_a_name_with_parentheses_and_spaces_is_no_field(tmp_path):
    program = tmp_path / "a) Z 1 (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([str(program), "600"]) as child:
        try:
            assert has_ended(process_of(child.pid)) is False
        finally:
            child.kill()
