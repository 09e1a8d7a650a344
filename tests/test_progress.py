"""What a person sees while a job runs, and that Ctrl-C is never lost."""

import subprocess
import sys

import pytest

CODE = """
import os, signal, time
from theodolite_jobs.interrupts import remember_interrupts
from theodolite_jobs.progress import Console
remember_interrupts()
console = Console()
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)
except BaseException:
    pass  # as libraries do, some of them in C
{then}
print("went on")
"""


@pytest.mark.parametrize(
    "then", ["console.say('next')", "with console.bar('capture', 2) as bar: bar.advance(1)"], ids=["word", "bar"]
)
def test_an_interrupt_that_a_library_swallowed_ends_the_job_at_its_next_word(then):
    found = subprocess.run([sys.executable, "-c", CODE.format(then=then)], capture_output=True, text=True, check=False)
    assert found.returncode != 0
    assert found.stdout == ""
    assert "KeyboardInterrupt" in found.stderr


def test_who_was_started_to_ignore_interrupts_goes_on_doing_so():
    code = "import signal; from theodolite_jobs.interrupts import remember_interrupts as r; r(); "
    command = f"trap '' INT; {sys.executable} -c '{code}print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)'"
    found = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert found.stdout == "True\n"
