"""The arrays of `separation` equal their definitions, written out on the captured arrays."""

import numpy as np
import pytest
from scipy.stats import binomtest, norm
from sklearn.metrics import roc_auc_score
from support.analysing import analyse
from support.result_cases import (
    CONTRASTS,
    LAYERS,
    QUARANTINED,
    SEQUENTIAL,
    WIDTH,
    Stored,
    assert_group,
    contrast,
    draw,
    silent,
    store,
)
from support.stored import store_run

from theodolite.bands import simultaneous_quantile
from theodolite.store.result_reader import read_finished_table, read_group
from theodolite_jobs.groups.separation import scores as separation_scores
from theodolite_jobs.groups.separation.formulas import fisher_ratio
from theodolite_jobs.statistics.folds import Folds


def folded(samples, indices):
    of_folds = np.asarray(indices) % 5
    parts = [samples[of_folds == fold] for fold in range(5)]
    means = np.stack([part.mean(axis=0) if len(part) else np.zeros(WIDTH) for part in parts])
    deviations = [np.square(part - mean).sum() for part, mean in zip(parts, means, strict=True)]
    return Folds(np.array([len(part) for part in parts]), means[:, None], np.array(deviations)[:, None])


def mean_or_nothing(samples):
    return samples.mean(axis=0) if len(samples) else np.full(WIDTH, np.nan)


def held_out_scores(p, q, of_p, of_q):
    """The scores of both sets, sample by sample."""
    scores = []
    for samples, indices in ((p, of_p), (q, of_q)):
        for sample, index in zip(samples, indices, strict=True):
            a, b = (mean_or_nothing(x[np.asarray(of) % 5 != index % 5]) for x, of in ((p, of_p), (q, of_q)))
            difference = a - b if (a != b).any() else np.full(WIDTH, np.nan)
            scores.append((sample - (a + b) / 2) @ (difference / np.sqrt((difference**2).sum())))
    return np.array(scores[: len(p)]), np.array(scores[len(p) :])


def rows_of(on_p, on_q, paired):
    """For each statistic, the parts whose means add up to its error: one part of pairs, or one of each set."""
    wins = (on_p[:, None] > on_q) + 0.5 * (on_p[:, None] == on_q)
    n = len(on_p) + len(on_q)
    parts = {
        "auroc": [wins.mean(axis=1), wins.mean(axis=0)],
        "accuracy": [len(on_p) / n * (on_p > 0), len(on_q) / n * (on_q < 0)],
    }
    if not paired:
        return parts
    return {name: [first + second] for name, (first, second) in parts.items()} | {
        "paired_accuracy": [(1 + np.sign(on_p - on_q)) / 2]
    }


def separated(on_p, on_q, paired, z):
    """AUROC, accuracy and paired accuracy with their intervals, pair by pair, for one quantile each."""
    found, level = {}, {name: 1 - 2 * norm.sf(quantile) for name, quantile in z.items()}
    rows = rows_of(on_p, on_q, paired)
    area = roc_auc_score([1] * len(on_p) + [0] * len(on_q), np.concatenate([on_p, on_q]))
    n = min(len(on_p), len(on_q))
    bound = binomtest(n, n).proportion_ci(level["auroc"], method="exact").low
    if area in (0, 1):
        found["auroc"] = (area, bound, 1) if area == 1 else (area, 0, 1 - bound)
    else:
        error = np.sqrt(sum(part.var(ddof=1) / len(part) for part in rows["auroc"]))
        odds, half = np.log(area / (1 - area)), z["auroc"] * error / (area * (1 - area))
        low, high = (1 / (1 + np.exp(-(odds + side * half))) for side in (-1, 1))
        found["auroc"] = area, min(low, bound), max(high, 1 - bound)
    right, n = int((on_p > 0).sum() + (on_q < 0).sum()), len(on_p) + len(on_q)
    if not paired:
        wilson = binomtest(right, n).proportion_ci(level["accuracy"], method="wilson")
        return found | {"accuracy": (right / n, wilson.low, wilson.high)}
    outcomes = (on_p > 0).astype(float) + (on_q < 0)  # 0, 1 or 2 right
    cells = np.array([(outcomes == 2).sum(), (outcomes == 1).sum(), (outcomes == 0).sum()])
    cells, correct = cells + np.array([1, 2, 1]) * z["accuracy"] ** 2 / 8, np.array([1, 0.5, 0])
    centre = cells @ correct / cells.sum()
    half = z["accuracy"] * np.sqrt(cells @ (correct - centre) ** 2) / cells.sum()
    found["accuracy"] = right / n, max(centre - half, 0), min(centre + half, 1)
    ordered = int((on_p > on_q).sum())
    exact = binomtest(ordered, len(on_p)).proportion_ci(level["paired_accuracy"], method="exact")
    return found | {"paired_accuracy": (ordered / len(on_p), exact.low, exact.high)}


def error_terms(scores, paired):
    """The terms of each statistic's error, (row, place)."""
    terms = {}
    for on_p, on_q in scores:
        for name, parts in rows_of(on_p, on_q, paired).items():
            scaled = [(part - part.mean()) / np.sqrt(len(part) * (len(part) - 1)) for part in parts]
            terms.setdefault(name, []).append(np.concatenate(scaled))
    return {name: np.stack(columns, axis=1) for name, columns in terms.items()}


POINT = dict.fromkeys(("auroc", "accuracy", "paired_accuracy"), 1.959963984540054)


def expected_separation(stored, contrasts, sites=SEQUENTIAL, n_layers=LAYERS):
    shape = (len(contrasts), len(sites), 2, n_layers)
    expected = {name: np.full((*shape, 5), np.nan) for name in (*POINT, "fisher_ratio")}
    expected["n_used"] = np.zeros((len(contrasts), 2, 2))
    expected["auroc_band_limit"] = np.full((len(contrasts), 2), np.nan)
    for row, one in enumerate(contrasts.values()):
        sides, paired = [one["positive"], one["negative"]], one["paired"]
        excluded = [sample for side in sides for sample in QUARANTINED.get(side, {})] if paired else []
        indices = [stored.usable(side, excluded) for side in sides]
        for position in range(2):
            scored = {}
            for site, layer in np.ndindex(len(sites), n_layers):
                p, q = (stored.at(side, sites[site], position - 2, layer, excluded) for side in sides)
                if p is None or q is None:
                    continue
                expected["n_used"][row, position] = len(p), len(q)
                ratio = fisher_ratio(*(folded(x, of) for x, of in zip((p, q), indices, strict=True)))
                expected["fisher_ratio"][row, site, position, layer, :3] = np.ravel(ratio)
                scores = held_out_scores(p, q, *indices)
                if np.isfinite(np.concatenate(scores)).all():
                    scored[site, layer] = scores
            terms = error_terms(scored.values(), paired)
            quantiles = POINT | {name: simultaneous_quantile(of) for name, of in terms.items()}
            for (site, layer), scores in scored.items():
                at = row, site, position, layer
                for name, values in separated(*scores, paired, POINT).items():
                    expected[name][at][:3] = values
                for name, (_, low, high) in separated(*scores, paired, quantiles).items():
                    expected[name][at][3:] = low, high
            if not scored:
                continue
            n = min(map(len, scores))
            perfect = binomtest(n, n).proportion_ci(1 - 2 * norm.sf(quantiles["auroc"]), method="exact")
            expected["auroc_band_limit"][row, position] = perfect.low
    return expected


def test_separation_equals_its_definition_for_any_chunking(surveyed):
    group = assert_group(surveyed.run, "separation", expected_separation(surveyed, CONTRASTS))
    at_end = group.sel(position=-1)
    assert at_end["n_used"].sel(prompt_side="positive").values.tolist() == [12, 12, 8, 12, 12, 1, 6]
    assert at_end["n_used"].sel(prompt_side="negative").values.tolist() == [12, 13, 12, 12, 12, 13, 13]
    auroc = at_end["auroc"].sel(estimate="value")
    assert np.isnan(auroc.sel(contrast=["itself", "mirrored", "lonely"])).all()
    assert np.isfinite(auroc.sel(contrast=["refusal", "unpaired", "subject", "still"])).all()


def test_fewer_samples_than_folds_give_nan(tmp_path):
    arrays = {"bad": draw(4), "good": draw(9, seed=1)}
    contrasts = {"few": contrast("bad", "good")}
    run = store_run(tmp_path, arrays, contrasts=contrasts)
    stored = Stored(run, arrays, {name: of_set["resid_pre"][:, :, -1] for name, of_set in arrays.items()})
    analyse(run, contrasts, None, silent, requested={"separation"})
    group = assert_group(run, "separation", expected_separation(stored, contrasts))
    assert np.isnan(group["fisher_ratio"]).all()
    assert np.isfinite(group["auroc"].sel(estimate="value")).all()


def test_a_shared_first_token_separates_nothing(tmp_path):
    """What enters the first block is the same vector in all prompts of both sets, unlike in number."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(2, WIDTH)).astype(np.float32)
    arrays = {"bad": draw(13), "good": draw(7, seed=1)}
    for of_set in arrays.values():
        of_set["resid_pre"][:, :, 0] = shared
    contrasts = {"refusal": contrast("bad", "good")}
    run = store_run(tmp_path, arrays, shard_prompts=3, contrasts=contrasts)
    analyse(run, contrasts, None, silent, requested={"separation"})
    at = {"site": "resid_pre", "layer": 0}
    separation, curves, moments = (read_group(run, name).sel(at) for name in ("separation", "curves", "moments"))
    for name in ("auroc", "accuracy", "fisher_ratio"):
        assert np.isnan(separation[name]).all()
    assert (moments["m2"] == 0).all()
    assert (curves["variance_max"] == 0).all()
    np.testing.assert_allclose(curves["cosine_of_means_debiased"].sel(estimate="value"), 1, atol=1e-12)
    assert (curves["difference_norm"].sel(space="raw") == 0).all()


@pytest.mark.parametrize("name", ["refusal", "unpaired", "subject"])
def test_the_table_has_the_held_out_score_of_each_prompt(surveyed, name):
    table = read_finished_table(surveyed.run, "prompt_scores")
    table = table[table["contrast"] == name]
    sides, paired = [CONTRASTS[name][side] for side in ("positive", "negative")], CONTRASTS[name]["paired"]
    excluded = [sample for side in sides for sample in QUARANTINED.get(side, {})] if paired else []
    indices = [surveyed.usable(side, excluded) for side in sides]
    p, q = (surveyed.at(side, "resid_mid", -1, 2, excluded) for side in sides)
    at = (table["position"] == -1) & (table["site"] == "resid_mid") & (table["layer"] == 2)
    for side, prompt_set, samples, scores in zip(
        ("positive", "negative"), sides, indices, held_out_scores(p, q, *indices), strict=True
    ):
        rows = table[at & (table["side"] == side)]
        assert set(rows["set"]) == {prompt_set}
        assert rows["sample"].tolist() == list(samples)
        np.testing.assert_allclose(rows["score"], scores, rtol=1e-9, atol=1e-12)


def test_the_table_has_each_place_once(surveyed):
    group, table = read_group(surveyed.run, "separation"), read_finished_table(surveyed.run, "prompt_scores")
    assert not table.duplicated(["contrast", "position", "site", "layer", "side", "sample"]).any()
    counts = table.groupby(["contrast", "position", "side"], observed=True).size()
    for (name, position, side), count in counts.items():
        n = int(group["n_used"].sel(contrast=name, position=position, prompt_side=side))
        assert count == n * len(SEQUENTIAL) * LAYERS


def test_the_table_has_the_scores_of_the_first_prompts_alone(tmp_path, monkeypatch):
    run = store(tmp_path, sets=("good", "bad")).run
    monkeypatch.setattr(separation_scores, "MOST_SCORED", 3)
    analyse(run, {"refusal": contrast("good", "bad")}, None, silent, requested={"separation"})
    table = read_finished_table(run, "prompt_scores")
    assert table.groupby(["position", "site", "layer", "side"], observed=True).size().tolist() == [3] * (
        2 * 2 * LAYERS * 2
    )


def test_the_scales_are_the_spread_of_the_scores_at_each_place(surveyed):
    tables = [read_finished_table(surveyed.run, name) for name in ("prompt_scores", "prompt_score_scales")]
    scores, scales = (table[table["contrast"] == "subject"].astype({"site": str}) for table in tables)
    assert len(scales) == len(SEQUENTIAL) * LAYERS  # the sets have one common position
    for place in scales.itertuples():
        at = scores[(scores["site"] == place.site) & (scores["layer"] == place.layer)]
        sides = [at[at["side"] == side]["score"].to_numpy() for side in ("positive", "negative")]
        assert place.deviation == pytest.approx(np.sqrt(np.mean([side.var(ddof=1) for side in sides])), nan_ok=True)
        ends = [end for side in sides for end in np.quantile(side, (0.05, 0.95))]
        found = [place.low_positive, place.high_positive, place.low_negative, place.high_negative]
        np.testing.assert_allclose(found, ends)


def test_row_groups_begin_at_a_place_and_have_many_rows():
    starts = list(range(0, 100_000, 3_000))
    chosen = separation_scores._row_groups(starts)
    assert chosen == [0, 21_000, 42_000, 63_000, 84_000]
    assert separation_scores._row_groups([0, 50_000]) == [0, 50_000]
