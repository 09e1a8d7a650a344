"""A saved model that tests may copy and change, and a summary of the tested families by name."""

import shutil
from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

PROOF = "test_every_family.py::test_a_family_is_what_its_modules_compute["
QWEN1 = "test_qwen1.py::test_hidden_states_equal_those_of_qwen1"


@pytest.fixture(scope="session")
def saved_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder written by save_pretrained; tests copy it before they change it."""
    folder = tmp_path_factory.mktemp("saved") / "llama"
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved_llama: Path, tmp_path: Path) -> Path:
    """A copy of `saved_llama` that a test may change."""
    return Path(shutil.copytree(saved_llama, tmp_path / "llama"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    passed = [report.nodeid for report in terminalreporter.stats.get("passed", [])]
    families = sorted(test.split(PROOF)[1].removesuffix("]") for test in passed if PROOF in test)
    families += ["qwen1"] if any(QWEN1 in test for test in passed) else []
    if families:
        terminalreporter.write_line(f"{len(families)} families proven against a hand-run: {', '.join(families)}")
