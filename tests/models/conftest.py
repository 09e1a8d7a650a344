"""Says in the summary which families were proven, by name."""

import pytest

PROOF = "test_families.py::test_sites_equal_a_hand_run["


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    passed = [report.nodeid for report in terminalreporter.stats.get("passed", [])]
    families = sorted(test.split(PROOF)[1].removesuffix("]") for test in passed if PROOF in test)
    if families:
        terminalreporter.write_line(f"{len(families)} families proven against a hand-run: {', '.join(families)}")
