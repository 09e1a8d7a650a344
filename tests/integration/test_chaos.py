"""Seeded schedules of faults, by night; `make chaos` runs more of them."""

import pytest
from chaos.damages import damages_summary, run_damages
from chaos.harness import ends, run_seeds
from chaos.outcomes import open_only_run, summary
from chaos.processes import start_driver
from chaos.schedules import POISON, Fault
from support.tiny_survey import save_model, spec_of

from theodolite.query.verification import verify
from theodolite.store.commits import read_commits

pytestmark = pytest.mark.nightly


def test_no_schedule_of_faults_loses_doubles_or_changes_anything():
    outcomes = run_seeds(range(12), processes=1)
    assert {outcome.schedule.seed: outcome.problems for outcome in outcomes if outcome.problems} == {}
    assert summary(outcomes)["attempts"] > len(outcomes)  # faults ended some of them


def test_random_damages_are_named_and_repaired_to_the_bit():
    found = run_damages(range(6, 12), lambda _one: None)
    assert {one.seed: (one.unnamed, one.not_restored) for one in found if one.unnamed or one.not_restored} == {}
    assert damages_summary(found)["needed_spec"]


def test_a_prompt_that_kills_each_process_that_captures_it_is_quarantined_by_name(tmp_path):
    spec, log = spec_of(save_model(tmp_path / "model")), tmp_path / "log.txt"
    driver = start_driver(
        spec, str(tmp_path / "store"), [Fault("replica", "harmful", 4, POISON, is_after=False)], {}, log
    )
    assert ends(driver, log)
    assert driver.exitcode == 0, log.read_text()
    run = open_only_run(str(tmp_path / "store"))
    quarantined = [commit.quarantined for name in spec.sets for commit in read_commits(run, name).values()]
    assert [samples for samples in quarantined if samples] == [{4: "kills the process that captures it"}]
    assert "prompt 4 of harmful kills its replica and is quarantined" in log.read_text()
    assert list(verify(run)) == []
