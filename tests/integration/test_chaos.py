"""Seeded schedules of faults; `make chaos` runs more of them."""

from chaos.harness import run_seeds, summary


def test_no_schedule_of_faults_loses_doubles_or_changes_anything():
    outcomes = run_seeds(range(3), with_bucket=False)
    assert {outcome.schedule.seed: outcome.problems for outcome in outcomes if outcome.problems} == {}
    assert summary(outcomes)["attempts"] > 3
