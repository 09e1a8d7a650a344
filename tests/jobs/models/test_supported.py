"""The table of families agrees with the records, and the stored forms of it with the newest sweep."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.each import each
from support.tiny_configs import CONFIGS

from theodolite.sites import BLOCK_SITES, Site
from theodolite_jobs.capture.parity import FLOAT32_BOUND
from theodolite_jobs.models import supported
from theodolite_jobs.models.families import FAMILIES, REFUSED, known_anatomy
from theodolite_jobs.models.supported import SWEPT, cells, supported_families

ROOT = Path(__file__).parents[3]
ROWS = {row.family: row for row in supported_families()}
UPDATE = "run: python docs/families.py"


@pytest.fixture(scope="module")
def program():
    spec = importlib.util.spec_from_file_location("docs_families", ROOT / "docs" / "families.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_stored_short_form_is_that_of_the_newest_sweep(program):
    assert SWEPT.read_text(encoding="utf-8") == program.swept(), UPDATE


def test_the_page_shows_todays_records(program):
    assert program.PAGE.read_text(encoding="utf-8") == program.page(), UPDATE


def test_every_record_and_every_refused_family_is_in_the_table():
    parts = {family for family in FAMILIES if family not in ROWS}
    assert parts <= {text for row in ROWS.values() for text in FAMILIES if row.note.endswith(f"text model, {text}")}
    assert {ROWS[family].known_by for family in REFUSED} == {"refused"}


# A multimodal family has no record of its own, so it has a row only if the sweep tried it.
@each("family", sorted({config.model_type for config in CONFIGS.values()} & set(ROWS)))
def test_a_row_agrees_with_the_record_of_a_configuration(family):
    anatomies = [known_anatomy(config) for config in CONFIGS.values() if config.model_type == family]
    row = ROWS[family]
    assert row.known_by == "record"
    present = set(BLOCK_SITES) - set(row.missing_sites) - {Site.RESID_MID_SUM}
    assert any({*anatomy.taps, *anatomy.partial} - {Site.RESID_MID_SUM} == present for anatomy in anatomies)
    assert row.heads == (not anatomies[0].no_circuits)
    assert row.words == (row.heads and not anatomies[0].no_words)


@each("path", sorted(ROOT.glob("benchmarks/results/drawn_*.json")))
def test_a_sweep_of_drawn_settings_has_no_wrong_capture(path):
    sweep = json.loads(path.read_text(encoding="utf-8"))
    assert set(sweep["outcomes"]) <= {"captured", "refused"}
    assert sweep["outcomes"]["captured"] >= 200
    assert sweep["max_error"] <= FLOAT32_BOUND
    assert all(one["reason"] for one in sweep["configurations"] if one["outcome"] == "refused")


def test_a_record_that_the_sweep_lacks_was_not_tried(monkeypatch, tmp_path):
    (tmp_path / "swept.json").write_text('{"strange": {"refused": "it is strange"}}')
    monkeypatch.setattr(supported, "SWEPT", tmp_path / "swept.json")
    rows = {row.family: cells(row) for row in supported_families()}
    assert rows["llama"] == ("llama", "record", "none", "yes", "yes", "not tried", "not tried", "")
    assert rows["strange"] == ("strange", "refused", "", "", "", "", "", "it is strange")


def test_the_command_prints_the_table_without_torch():
    code = "import sys; from theodolite_jobs.cli import main; main(); assert 'torch' not in sys.modules"
    call = [sys.executable, "-c", code, "families"]
    table = subprocess.run(call, check=True, capture_output=True, text=True).stdout.splitlines()
    assert len(table) == 1 + len(ROWS)
    assert table[0].split("  ")[0] == "family"
    printed = subprocess.run([*call, "--json"], check=True, capture_output=True, text=True).stdout
    (llama,) = (item for item in json.loads(printed)["items"] if item["family"] == "llama")
    assert llama == {
        "family": "llama",
        "known_by": "record",
        "missing_sites": [],
        "heads": True,
        "words": True,
        "tensor_parallel": True,
        "half_precision": ["bfloat16", "float16"],
        "note": "",
    }
