"""The conclusion of a run: questions, findings with their numbers, and limits."""

from dataclasses import replace

import numpy as np
import pytest
from support.analysed_runs import PAIRED, draw, silent
from support.analysing import analyse
from support.finished_runs import finished_run, model_facts
from support.stored import store_run

from theodolite.sections.conclusion import conclusion, read_conclusion
from theodolite.sections.parts import Figure, Section

TESTED = {
    "auroc_z": 9.0,
    "auroc_null_mean": 0.5,
    "auroc_null_sd": 0.02,
    "auroc_p_family": 0.005,
    "tokens_auroc": 0.566,
    "n_positive": 4,
    "n_negative": 4,
}


def finding_of(run, group):
    return next(finding.text for finding in read_conclusion(run).found if finding.group == group)


@pytest.fixture(scope="module")
def analysed_run(tmp_path_factory):
    """A contrast of pairs far apart, with all results that need no weights."""
    arrays = {"bad": draw(30, shift=1.0), "good": draw(30, seed=1, shift=1.4)}
    run = store_run(tmp_path_factory.mktemp("run"), arrays, contrasts=PAIRED)
    analyse(run, PAIRED, None, silent, requested={"separation", "permutations", "travel", "basis"})
    return run


def test_a_run_with_a_contrast_is_a_question_about_its_two_sets(tmp_path):
    run = finished_run(tmp_path, {"curves": {"cosine_of_means_debiased": 0.75}})
    asked = read_conclusion(run).asked
    assert asked == [
        "How do the activations of tiny differ between harmful and harmless prompts (4 and 4 unpaired prompts), along "
        "its 4 layers?",
        "Results: Curves.",
    ]


def test_separation_is_found_if_its_test_passes(tmp_path):
    results = {"curves": {}, "directions": {}, "separation": {"auroc": 0.75, "n_positive": 4, "n_negative": 4}}
    run = finished_run(tmp_path / "one", results | {"permutations": TESTED})
    assert finding_of(run, "separation") == (
        "The activations of 4 harmful and 4 harmless prompts separate better than chance: the largest AUROC of "
        "held-out prompts is 0.750, at layer 0 pre (permuted labels give 0.50 ± 0.02, p = 0.005 over all depths). "
        "Token counts alone, without a model, give an AUROC of 0.566."
    )
    failed = finished_run(tmp_path / "two", results | {"permutations": TESTED | {"auroc_p_family": 0.3}})
    assert "do not separate better than chance" in finding_of(failed, "separation")


@pytest.mark.parametrize(("low", "verdict"), [(0.6, "separate better than"), (0.4, "do not separate better than")])
def test_without_permutations_the_interval_decides(tmp_path, low, verdict):
    values = {"auroc": 0.75, "auroc_low": low, "auroc_high": 0.9, "n_positive": 4, "n_negative": 4}
    run = finished_run(tmp_path, {"curves": {}, "directions": {}, "separation": values})
    assert f"prompts {verdict} chance" in finding_of(run, "separation")


def test_the_smallest_cosine_has_its_interval_and_place(tmp_path):
    cosine = np.full((1, 2, 1, 4), 0.75)
    cosine[0, 1, 0, 2] = 0.5
    values = {
        "cosine_of_means_debiased": cosine,
        "cosine_of_means_low": cosine - 0.1,
        "cosine_of_means_high": cosine + 0.1,
        "n_positive": 4,
        "n_negative": 4,
    }
    assert finding_of(finished_run(tmp_path, {"curves": values}), "curves") == (
        "The mean activations of harmful and harmless (4 and 4 unpaired prompts) have a cosine, without the bias of "
        "noise, of at least 0.5000 [0.4000, 0.6000]; it is smallest at layer 2 mid (equal directions give 1)."
    )


def test_each_finding_names_a_figure_of_its_group(analysed_run):
    found = read_conclusion(analysed_run).found
    assert [finding.group for finding in found] == ["separation", "curves", "travel", "basis"]
    assert all(finding.figure.split(".")[0] == finding.group for finding in found)
    assert "30 bad and 30 good prompts separate better than chance" in found[0].text
    assert "of the held-out pairs are in the right order" in found[0].text


def test_the_limits_name_what_was_not_measured(analysed_run, tmp_path):
    limits = " ".join(read_conclusion(analysed_run).limits)
    assert "not what the model uses" in limits
    assert "no untrained twin was surveyed" in limits
    results = {"curves": {}, "directions": {}, "separation": {"auroc": 0.75, "n_positive": 4, "n_negative": 4}}
    run = finished_run(tmp_path, results)
    facts = model_facts().model_copy(update={"name": "tiny (random weights)", "weights": "random", "seed": 0})
    finished_run(tmp_path, results, facts, "tiny-random-weights-0")
    assert "twin" not in " ".join(read_conclusion(run).limits)


def test_every_group_is_heard_before_one_is_heard_twice(analysed_run):
    def section(text):
        return Section("title", [], [Figure(f"{text}.1", "", lambda: None)], finding=f"{text}.")

    sections = {"separation": [section(f"s{index}") for index in range(4)], "basis": [section("b0")], "curves": []}
    found = conclusion(analysed_run, sections).found
    assert [finding.text for finding in found] == ["s0.", "b0.", "s1.", "s2.", "s3."]
    sections["separation"].append(section("s4"))
    assert len(conclusion(analysed_run, sections).found) == 5


def test_a_run_without_findings_says_so_by_an_empty_list(tmp_path):
    assert read_conclusion(finished_run(tmp_path, {"curves": {}})).found == []


def test_a_run_of_weights_asks_about_the_weights(tmp_path):
    run = finished_run(tmp_path, {"heads": {}}, contrasts={})
    run = replace(run, record=run.record.model_copy(update={"sets": {}}))
    written = conclusion(run, {"heads": [Section("title", [], finding="the rank is small.")]})
    assert written.asked[0].startswith("Which structure do the weights of the ")
    assert [finding.text for finding in written.found] == ["the rank is small."]
    assert "float64" in written.rests_on[0]
    assert written.limits == []
