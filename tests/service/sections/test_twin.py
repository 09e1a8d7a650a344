"""Sentences and lines about the untrained twin of a run."""

import numpy as np
import pytest
import xarray as xr
from support.finished_runs import finished_run, model_facts
from support.sentences import assert_says

from theodolite.groups.curves import sections as curves
from theodolite.groups.directions import sections as directions
from theodolite.groups.schema import INTERVAL
from theodolite.groups.separation import sections as separation
from theodolite.sections.catalogue import draw_figure
from theodolite.store.result_reader import read_group

# (contrast, site, position, layer): pre and mid of four layers
COSINE = np.array([[[[1.0, 0.9, 0.7, 0.8]], [[0.95, 0.6, 0.75, 0.85]]]])
TWIN_COSINE = np.array([[[[1.0, 0.98, 0.97, 0.96]], [[0.99, 0.985, 0.975, 0.965]]]])
AUROC = np.array([[[[0.5, 0.7, 0.8, 0.9]], [[0.6, 0.75, 0.85, 0.95]]]])
TWIN_AUROC = np.array([[[[np.nan, 0.6, 0.7, 0.6]], [[0.81, 0.6, 0.6, 0.6]]]])
NEIGHBOURS = np.zeros((1, 2, 1, 4, 4))
NEIGHBOURS[..., [0, 1, 2], [1, 2, 3]] = [[[[0.9, 0.98, 0.99]], [[0.5, 0.6, 0.7]]]]


def estimate(value, half, of_band):
    """Return a statistic with an interval and a band of these half widths."""
    ends = {"low": value - half, "high": value + half, "band_low": value - of_band, "band_high": value + of_band}
    return {"value": value, **ends}


def results(cosine, auroc, neighbours=np.nan):
    cosines = estimate(cosine, 0.01, 0.02)
    return {
        "curves": {"cosine_of_means_debiased": {end: {"raw": one} for end, one in cosines.items()}},
        "separation": {"auroc": estimate(auroc, 0.05, 0.1), "accuracy": dict.fromkeys(INTERVAL, 0.5)},
        "directions": {"direction_cosine": neighbours, "reliability": 0.9},
    }


@pytest.fixture
def run(tmp_path):
    return finished_run(tmp_path, results(COSINE, AUROC))


@pytest.fixture
def twin(tmp_path):
    facts = model_facts().model_copy(update={"name": "tiny (random weights)", "weights": "random", "seed": 3})
    return finished_run(tmp_path, results(TWIN_COSINE, TWIN_AUROC, NEIGHBOURS), facts, "tiny-random-weights-0")


BELOW = np.array([[[[np.nan, -0.1, 0.01, 0.2]], [[-0.4, -0.05, 0.0, 0.25]]]])
"""The lower end of the band of the AUROC minus that of the twin."""


@pytest.fixture
def below(monkeypatch):
    """Give the difference from the twin its band; these runs have no scores of prompts."""

    def auroc_difference(run, twin, contrast):
        own, other = (read_group(one, "separation").sel(contrast=contrast)["auroc"] for one in (run, twin))
        value = (own - other).sel(estimate="value")
        low = value.copy(data=BELOW[0])
        ends = {"value": value, "band_low": low, "band_high": 2 * value - low}
        return xr.concat(ends.values(), xr.Variable("estimate", list(ends)))

    monkeypatch.setattr("theodolite.query.twin.auroc_difference", auroc_difference)


def facts_of(module, run):
    (section,) = module.sections(run)
    return [fact for fact in section.facts if "twin" in fact]


def test_without_a_twin_nothing_is_said_or_drawn(run):
    assert facts_of(curves, run) == facts_of(separation, run) == []
    for name in ("curves.refusal.-1", "curves.refusal.-1.sphere", "separation.refusal"):
        assert not [trace for trace in draw_figure(run, name).data if "twin" in str(trace.name)]


def test_the_smallest_cosine_of_the_twin_and_that_at_the_models_own_depth_are_stated(run, twin):
    (fact,) = facts_of(curves, run)
    assert_says(fact, "seed 3 … 0.9600 [0.9400, 0.9800] at layer 3 pre, and 0.9850 [0.9750, 0.9950] at layer 1 mid")
    assert facts_of(curves, twin) == []


TWIN_LARGEST = "AUROC … 0.810 [0.710, 0.910] … difference of means, at layer 0 mid"


def test_the_largest_auroc_of_the_twin_and_the_depths_above_it_are_stated(run, twin, below):
    largest, above = facts_of(separation, run)
    assert_says(largest, f"seed 3 … {TWIN_LARGEST}")
    assert_says(above, "above … twin at 3 of 7 depths (layers 2 pre, 3 pre to 3 mid)")
    assert_says(above, "0.350 [0.250, 0.450], at layer 3 mid … other depths … do not show")


def test_the_median_cosine_between_neighbouring_directions_of_the_twin_is_stated(run, twin):
    (fact,) = facts_of(directions, run)
    assert_says(fact, "neighbouring layers … twin … 0.98 at resid_pre and 0.60 at resid_mid")


def test_the_finding_states_the_largest_auroc_of_the_twin(run, twin, below):
    (section,) = separation.sections(run)
    twins = "0.810 [0.710, 0.910], at layer 0 mid"
    assert_says(section.finding, f"untrained twin … {twins} … above … twin at 3 of 7 depths")
    (own,) = separation.sections(twin)
    assert "twin" not in own.finding


@pytest.mark.parametrize(
    ("low", "expected"),
    [(0.1, "7 of 7 depths … 0.350 [0.100, 0.600]"), (-0.1, "0 of 7 depths … 0.350 [-0.100, 0.800]")],
)
def test_the_limit_of_the_comparison_is_stated_unless_all_depths_lie_above(
    run, twin, below, monkeypatch, low, expected
):
    monkeypatch.setattr(f"{__name__}.BELOW", np.where(np.isnan(BELOW), np.nan, low))
    fact = facts_of(separation, run)[1]
    assert_says(fact, f"above … twin at {expected}, at layer 3 mid")
    assert ("do not show" in fact) == (low < 0)


def test_without_scores_of_prompts_the_difference_is_not_tested(run, twin):
    first, *others = facts_of(separation, run)
    assert_says(first, TWIN_LARGEST)
    assert not [fact for fact in others if "above" in fact]


def test_the_difference_from_the_twin_has_a_panel(run, twin, below):
    figure = draw_figure(run, "separation.refusal")
    assert [axis.title.text for axis in figure.select_yaxes()][:2] == ["AUROC", "AUROC minus twin"]


def test_the_curves_of_the_twin_are_drawn(run, twin):
    of_curves, of_separation = (draw_figure(run, name).data for name in ("curves.refusal.-1", "separation.refusal"))
    (line,) = (trace for trace in of_curves if trace.name == "untrained twin")
    np.testing.assert_array_equal(np.array(line.y, dtype=float), TWIN_COSINE[0, :, 0].T.ravel())  # pre and mid in turn
    line = next(trace for trace in of_separation if trace.name == "untrained twin")
    np.testing.assert_array_equal(np.array(line.y, dtype=float), TWIN_AUROC[0, :, 0].T.ravel())
    on_sphere = draw_figure(run, "curves.refusal.-1.sphere")
    assert [trace.name for trace in on_sphere.data if "twin" in str(trace.name)] == ["untrained twin"]


def test_a_twin_whose_statistics_are_missing_is_not_mentioned(tmp_path, run):
    facts = model_facts().model_copy(update={"name": "tiny (random weights)", "weights": "random", "seed": 3})
    finished_run(tmp_path, results(COSINE * np.nan, AUROC * np.nan), facts, "tiny-random-weights-0")
    assert facts_of(curves, run) == facts_of(separation, run) == []
