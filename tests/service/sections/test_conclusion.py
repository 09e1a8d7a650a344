"""The conclusion of a run: questions, findings with their numbers, and limits."""

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from support.analysed_runs import PAIRED, draw, silent
from support.analysing import analyse
from support.finished_runs import adapter_facts, cached_run, model_facts
from support.sentences import assert_says
from support.stored import store_run

from theodolite.sections.catalogue import section_items, sections_of, shown_groups
from theodolite.sections.conclusion import _ORDER, conclusion, read_conclusion
from theodolite.sections.parts import Figure, Section
from theodolite.sections.worth import UNTESTED, Worth, worth_below, worth_of
from theodolite.store.cache import Cache
from theodolite.store.runs import Run

TESTED = {
    "tested_null": {"auroc": {"z": 9.0, "mean": 0.5, "sd": 0.02, "p_family": 0.005}},
    "tokens": {"auroc": {"means": {"value": 0.566, "low": 0.52, "high": 0.61}}},
    "n_used": 4,
}
FAILED = TESTED | {"tested_null": {"auroc": {**TESTED["tested_null"]["auroc"], "p_family": 0.3}}}
SEPARATION = {"auroc": {"value": 0.75}, "n_used": 4}


def finding_of(run, group):
    return next(finding.text for finding in read_conclusion(run).found if finding.group == group)


@pytest.fixture(scope="module")
def analysed_run(tmp_path_factory):
    """A contrast of pairs far apart, with all results that need no weights."""
    arrays = {"bad": draw(30, shift=1.0), "good": draw(30, seed=1, shift=1.4)}
    run = store_run(tmp_path_factory.mktemp("run"), arrays, contrasts=PAIRED)
    analyse(run, PAIRED, None, silent, requested={"separation", "permutations", "travel", "basis"})
    return replace(run, cache=Cache(2**26))


def test_a_run_with_a_contrast_is_a_question_about_its_two_sets(tmp_path):
    run = cached_run(tmp_path, {"curves": {"cosine_of_means_debiased": {"value": {"raw": 0.75}}}})
    asked = read_conclusion(run).asked
    assert_says(asked[0], "tiny … harmful and harmless prompts (4 and 4 unpaired prompts) … 4 layers")
    assert_says(asked[1], "Curves")


@pytest.mark.parametrize("counts", [[0, 5], [5, 0]])
def test_a_position_that_one_set_lacks_has_no_section(tmp_path, counts):
    results = {"curves": {"cosine_of_means_debiased": {"value": {"raw": 0.75}}, "n_used": counts}}
    assert not sections_of(cached_run(tmp_path, results), "curves")


def test_separation_is_found_if_its_test_passes(tmp_path):
    results = {"curves": {}, "directions": {}, "separation": SEPARATION}
    run = cached_run(tmp_path / "one", results | {"moments": {}, "permutations": TESTED})
    assert_says(
        finding_of(run, "separation"),
        "4 harmful and 4 harmless prompts separate better than chance … 8 depths … 0.750, at layer 0 pre",
        "0.750 … permuted labels give 0.50 ± 0.02 … p = 0.005 … Token counts … 0.566 [0.520, 0.610]",
    )
    failed = cached_run(tmp_path / "two", results | {"moments": {}, "permutations": FAILED})
    assert "4 harmful and 4 harmless prompts are too few to test" in finding_of(failed, "separation")
    results["separation"] = SEPARATION | {"n_used": 6}
    more = cached_run(tmp_path / "three", results | {"moments": {}, "permutations": FAILED})
    assert "6 harmful and 6 harmless prompts are not shown to separate better than chance" in finding_of(
        more, "separation"
    )


@pytest.mark.parametrize(
    ("low", "verdict"), [(0.6, "separate better than"), (0.4, "are not shown to separate better than")]
)
def test_without_permutations_the_interval_decides(tmp_path, low, verdict):
    values = {"auroc": {"value": 0.75, "band_low": low, "band_high": 0.9}}
    run = cached_run(tmp_path, {"curves": {}, "directions": {}, "separation": SEPARATION | values})
    assert f"prompts {verdict} chance" in finding_of(run, "separation")


@pytest.mark.parametrize(
    ("layer", "where"), [(2, "layer 2 mid"), (3, "layer 3 mid … last depth")], ids=["inside", "last"]
)
def test_the_smallest_cosine_has_its_interval_and_place(tmp_path, layer, where):
    cosine = np.full((1, 2, 1, 4), 0.75)
    cosine[0, 1, 0, layer] = 0.5
    ends = {"value": cosine, "band_low": cosine - 0.1, "band_high": cosine + 0.1}
    values = {
        "cosine_of_means_debiased": {end: {"raw": one} for end, one in ends.items()},
        "n_used": 4,
    }
    text = finding_of(cached_run(tmp_path, {"curves": values}), "curves")
    assert_says(text, f"harmful and harmless … smallest … {where} … 0.5000 [0.4000, 0.6000] … 4 and 4 unpaired")
    assert ("last depth" in text) == (layer == 3)


def test_means_of_sets_with_a_common_token_are_similar_by_it(tmp_path):
    variances = np.ones((2, 2, 1, 4))
    variances[:, 0, 0, 0] = 0  # at the input of the first block
    values = {
        "cosine_of_means_debiased": {"value": {"raw": 0.9}},
        "variance_mean": {"raw": variances},
        "difference_norm": {"raw": 0.0},
        "n_used": 4,
    }
    common = "same token at this position"
    assert common in finding_of(cached_run(tmp_path / "one", {"curves": values}), "curves")
    for name, changed in (("two", {"difference_norm": {"raw": 0.1}}), ("three", {"variance_mean": {"raw": 0.1}})):
        assert common not in finding_of(cached_run(tmp_path / name, {"curves": values | changed}), "curves")


def test_each_finding_names_a_figure_of_its_group(analysed_run):
    found = read_conclusion(analysed_run).found
    assert [finding.group for finding in found] == ["separation", "curves", "basis"]
    assert all(finding.figure.split(".")[0] == finding.group for finding in found)
    assert "30 bad and 30 good prompts separate better than chance" in found[0].text
    assert "held-out pairs" in found[0].text


def test_a_group_with_findings_has_a_place_in_the_conclusion(analysed_run):
    for group in shown_groups(analysed_run):
        assert group in _ORDER or not any(one.finding for one in sections_of(analysed_run, group)), group


def test_the_limits_name_what_was_not_measured(analysed_run, tmp_path):
    limits = " ".join(read_conclusion(analysed_run).limits)
    assert "model uses" in limits
    assert "no untrained twin was surveyed" in limits
    results = {"curves": {}, "directions": {}, "separation": SEPARATION}
    run = cached_run(tmp_path, results)
    facts = model_facts().model_copy(update={"name": "tiny (random weights)", "weights": "random", "seed": 0})
    cached_run(tmp_path, results, facts, "tiny-random-weights-0")
    assert "twin" not in " ".join(read_conclusion(run).limits)


INDEPENDENT = "prompts of a set … as independent"


def test_findings_with_intervals_treat_prompts_as_independent(analysed_run, tmp_path):
    assert_says(read_conclusion(analysed_run).limits, INDEPENDENT)
    without = cached_run(tmp_path, {"curves": {}})
    assert not any("independent" in limit for limit in read_conclusion(without).limits)


@pytest.mark.parametrize("position", [-1, -2])
def test_the_last_position_is_the_last_token_of_the_prompt_with_its_template(tmp_path, position):
    first, *_ = read_conclusion(cached_run(tmp_path, {"curves": {}}, positions=[position])).limits
    assert_says(first, f"position {position}")
    assert ("last token" in first) == (position == -1)


def test_weights_of_a_gguf_file_are_dequantised(tmp_path):
    facts = model_facts(kind="gguf", place="tiny.gguf")  # of a run before formats were named
    quantised = cached_run(tmp_path / "gguf", {"curves": {}}, facts)
    assert_says(read_conclusion(quantised).limits, "tiny.gguf, dequantised. … original precision")
    named = facts.model_copy(update={"dequantised_from": "GGUF (Q4_K)"})
    quantised = cached_run(tmp_path / "named", {"curves": {}}, named)
    assert_says(read_conclusion(quantised).limits, "tiny.gguf, dequantised from GGUF (Q4_K) … original precision")
    folder = cached_run(tmp_path / "folder", {"curves": {}}, model_facts(place="tiny.gguf"))
    assert not any("dequantised" in limit for limit in read_conclusion(folder).limits)


def test_weights_with_an_adapter_are_named(tmp_path):
    facts = model_facts(place="org/base", adapter=adapter_facts())
    limits = read_conclusion(cached_run(tmp_path, {"curves": {}}, facts)).limits
    assert_says(limits, "org/base … adapter lora (LoRA of rank 8, 14 matrices changed) … merged in float32")


def test_a_run_of_quantised_weights_rests_on_the_dequantised_ones(tmp_path):
    facts = model_facts().model_copy(update={"dequantised_from": "FP8 (e4m3, blocks of 128 × 128)"})
    run = cached_run(tmp_path, {"curves": {}}, facts)
    parity = {"prompts": 16, "max_error": 2.34e-7, "bound": 1e-5, "dtype": "float32", "device": "cpu", "warning": None}
    run = replace(run, record=run.record.model_copy(update={"parity": parity}))
    assert_says(conclusion(run, {}).rests_on[-1], "dequantised from FP8 (e4m3, blocks of 128 × 128) … 2.3e-07")


def test_prompts_that_were_too_long_are_counted_as_left_out(tmp_path):
    run = cached_run(tmp_path, {"moments": {}})
    facts = {name: one.model_copy(update={"n_skipped": 3}) for name, one in run.record.sets.items()}
    changed = Run(run.store, run.record.model_copy(update={"sets": facts}))
    for one, counts in ((run, "harmful 4 (0 left out); harmless 4"), (changed, "harmful 7 (3 left out); harmless 7")):
        assert_says(conclusion(one, {}).rests_on[0], f"Prompts: {counts}")


def test_a_run_rests_on_the_parity_of_its_probe_prompts(tmp_path):
    run = cached_run(tmp_path, {"curves": {}})
    parity = {"prompts": 16, "max_error": 2.34e-7, "bound": 1e-5, "dtype": "float32", "device": "cpu", "warning": None}
    run = replace(run, record=run.record.model_copy(update={"parity": parity}))
    text = conclusion(run, {}).rests_on[-1]
    assert_says(text, "16 probe prompts … transformers … 2.3e-07 … 1e-05 … float32 on cpu … float64 … (float32)")


def test_a_run_rests_on_the_warning_of_its_parity_check(tmp_path):
    run = cached_run(tmp_path, {"curves": {}})
    parity = {"prompts": 16, "max_error": 3e-5, "bound": 5e-5, "dtype": "float32", "device": "cpu"}
    parity["warning"] = "The largest error passes the check, but it is no rounding"
    run = replace(run, record=run.record.model_copy(update={"parity": parity}))
    assert_says(conclusion(run, {}).rests_on[-1], "float32 on cpu … passes the check, but it is no rounding")


def section(text, *worth):
    return Section("title", [], [Figure(f"{text}.1", "", lambda: None)], finding=f"{text}.", worth=Worth(*worth))


def found_in(run, sections):
    return [finding.text for finding in conclusion(run, sections).found]


def test_findings_that_pass_come_first_and_answers_before_larger_effects(analysed_run):
    sections = {
        "separation": [section("separation", True, 3.0)],
        "effects": [section("effects that fail", False, 40.0)],
        "curves": [section("curves", True, 2.0)],
        "contributions": [section("contributions", True, 9.0)],
        "routing": [section("routing that fails", False, 8.0)],
        "basis": [section("basis without a test")],
    }
    expected = ["separation.", "contributions.", "curves.", "effects that fail.", "routing that fails."]
    assert found_in(analysed_run, sections) == expected
    sections["effects"] = [section("effects", True, 1.0)]
    assert found_in(analysed_run, sections)[:3] == ["separation.", "effects.", "contributions."]


def test_two_findings_of_a_group_are_ordered_by_their_effects(analysed_run):
    sections = {"separation": [section("small", True, 2.0), section("null", False), section("large", True, 5.0)]}
    assert found_in(analysed_run, sections) == ["large.", "small.", "null."]


def test_a_contrast_has_no_findings_about_nouns_and_travel_unless_the_spec_names_travel(analysed_run, tmp_path):
    sections = {name: [section(name, True, 50.0)] for name in ("words", "travel", "curves")}
    assert found_in(analysed_run, sections) == ["curves."]
    spec = analysed_run.record.spec.model_copy(update={"analyses": ["travel", "words"]})
    named = replace(analysed_run, record=analysed_run.record.model_copy(update={"spec": spec}))
    assert found_in(named, sections) == ["curves.", "travel."]  # equal effects, in the order of the groups
    alone = cached_run(tmp_path, {"moments": {}}, contrasts={})
    assert set(found_in(alone, sections)) == {"words.", "travel.", "curves."}


def test_the_worth_of_a_finding_is_that_of_the_places_that_pass():
    p, z = (xr.DataArray(np.array(values)) for values in ([0.3, 0.05, np.nan, 0.01], [9.0, -4.0, 20.0, 3.0]))
    assert worth_of((p, z)) == Worth(True, 4.0)
    assert worth_of((p + 0.2, z)) == Worth(False, 20.0)
    assert worth_of((p * np.nan, z * np.nan)) == UNTESTED


@pytest.mark.parametrize(("high", "passed"), [(0.8, True), (1.1, False)])
def test_the_worth_of_a_smallest_cosine_is_that_of_its_band(high, passed):
    ends = {"value": 0.5, "low": 0.49, "high": 0.51, "band_low": 0.2, "band_high": high}
    cosine = (("site", "layer", "estimate"), [[[*ends.values()]]])
    group = xr.Dataset({"cosine_of_means_debiased": cosine}, {"site": ["resid_pre"], "layer": [0], "estimate": [*ends]})
    found = worth_below(group, "cosine_of_means_debiased", 1)
    assert found == (passed, pytest.approx(0.5 / ((high - 0.2) / 3.92)))


def test_sections_have_the_worth_of_their_tests(analysed_run):
    worth = {name: sections_of(analysed_run, name)[0].worth for name in ("separation", "curves", "basis")}
    assert worth["separation"].passed
    assert worth["curves"].z > 0
    assert worth["basis"] == UNTESTED
    assert "worth" not in section_items(analysed_run, "separation")[0]


def test_a_run_without_findings_says_so_by_an_empty_list(tmp_path):
    assert read_conclusion(cached_run(tmp_path, {"curves": {}})).found == []


def test_a_run_of_weights_asks_about_the_weights(tmp_path):
    run = cached_run(tmp_path, {"heads": {}}, contrasts={})
    run = replace(run, record=run.record.model_copy(update={"sets": {}}))
    written = conclusion(run, {"heads": [Section("title", [], finding="the rank is small.")]})
    assert_says(written.asked[0], "structure … weights")
    assert [finding.text for finding in written.found] == ["the rank is small."]
    assert "float64" in written.rests_on[0]
    assert written.limits == []


def test_the_templates_of_the_sets_are_named_and_differing_ones_are_a_limit(tmp_path):
    run = cached_run(tmp_path, {"curves": {}})
    differ = "“refusal” have different templates"
    same = read_conclusion(run)
    assert any("all sets" in text and "“none”" in text for text in same.rests_on)
    assert differ not in " ".join(same.limits)
    sets = run.record.sets | {"harmful": run.record.sets["harmful"].model_copy(update={"template": "chat"})}
    changed = read_conclusion(Run(run.store, run.record.model_copy(update={"sets": sets})))
    assert_says(changed.rests_on, "harmful “chat”; harmless “none”")
    assert_says(changed.limits, differ)


def test_options_of_chats_are_named_with_the_template(tmp_path):
    run = cached_run(tmp_path, {"curves": {}})
    options = {"system": "Be brief.", "template_args": {"thinking": False}, "prefill": "Sure"}
    prompts = run.record.spec.prompts
    begun = prompts | {"harmful": prompts["harmful"].model_copy(update=options)}
    spec = run.record.spec.model_copy(update={"prompts": begun})
    changed = read_conclusion(Run(run.store, run.record.model_copy(update={"spec": spec})))
    assert_says(changed.rests_on, "harmful “none” with … “Be brief.” … thinking = false … prefill “Sure”; harmless")
    assert_says(changed.limits, "“refusal” have different templates")
