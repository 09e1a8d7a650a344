"""Print the names of the families that passed the hand-run test in the summary."""

import pytest

PROOF = "test_families.py::test_sites_equal_a_hand_run["
QWEN1 = "test_qwen1.py::test_hidden_states_equal_those_of_qwen1"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    passed = [report.nodeid for report in terminalreporter.stats.get("passed", [])]
    families = sorted(test.split(PROOF)[1].removesuffix("]") for test in passed if PROOF in test)
    families += ["qwen1"] if any(QWEN1 in test for test in passed) else []
    if families:
        terminalreporter.write_line(f"{len(families)} families proven against a hand-run: {', '.join(families)}")
