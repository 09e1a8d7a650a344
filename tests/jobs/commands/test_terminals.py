"""Output that a terminal or a pipe does not take ends in one line, and never in a traceback."""

import os
import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-m", "theodolite_jobs.cli"]


def test_characters_that_the_locale_lacks_are_escaped():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    end = subprocess.run([*COMMAND, "heads", "--help"], env=environment, capture_output=True, timeout=300)
    assert end.returncode == 0, end.stderr
    assert b"\\u2016" in end.stdout


def test_a_full_disk_behind_the_output_is_an_error_of_one_line():
    with open("/dev/full", "wb") as full:
        end = subprocess.run([*COMMAND, "spec", "schema"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
    assert end.returncode == 1
    assert end.stderr == "error: [Errno 28] No space left on device\n"


@pytest.mark.parametrize("arguments", [("spec", "schema"), ("families",)])
def test_a_reader_that_stops_reading_ends_the_command_without_a_message(arguments):
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
        process.wait(timeout=300)
