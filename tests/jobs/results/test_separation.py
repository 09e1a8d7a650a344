"""The arrays of `separation` equal their definitions, written out on the captured arrays."""

import numpy as np
from scipy.stats import binomtest
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
)
from support.stored import store_run

from theodolite.store.result_reader import read_group
from theodolite_jobs.statistics.separation import Folds, fisher_ratio


def folded(samples, indices):
    of_folds = np.asarray(indices) % 5
    parts = [samples[of_folds == fold] for fold in range(5)]
    means = np.stack([part.mean(axis=0) if len(part) else np.zeros(WIDTH) for part in parts])
    deviations = [np.square(part - mean).sum() for part, mean in zip(parts, means, strict=True)]
    return Folds(np.array([len(part) for part in parts]), means[:, None], np.array(deviations)[:, None])


def mean_or_nothing(samples):
    return samples.mean(axis=0) if len(samples) else np.full(WIDTH, np.nan)


def separated(p, q, of_p, of_q):
    """AUROC, accuracy and Fisher ratio with their intervals, sample by sample and pair by pair."""
    scores = []
    for samples, indices in ((p, of_p), (q, of_q)):
        for sample, index in zip(samples, indices, strict=True):
            a, b = (mean_or_nothing(x[np.asarray(of) % 5 != index % 5]) for x, of in ((p, of_p), (q, of_q)))
            difference = a - b if (a != b).any() else np.full(WIDTH, np.nan)
            scores.append((sample - (a + b) / 2) @ (difference / np.sqrt((difference**2).sum())))
    on_p, on_q = np.array(scores[: len(p)]), np.array(scores[len(p) :])
    found = {}
    if np.isfinite(scores).all():
        area = roc_auc_score([1] * len(p) + [0] * len(q), scores)
        wins = (on_p[:, None] > on_q) + 0.5 * (on_p[:, None] == on_q)
        variance = wins.mean(axis=1).var(ddof=1) / len(p) + wins.mean(axis=0).var(ddof=1) / len(q)
        half = 1.959963984540054 * np.sqrt(variance)
        found["auroc"] = area, max(area - half, 0), min(area + half, 1)
        if area in (0, 1):
            n = min(len(p), len(q))
            share = binomtest(n, n).proportion_ci(method="exact").low
            found["auroc"] = (area, share, 1) if area == 1 else (area, 0, 1 - share)
        right, n = int((on_p > 0).sum() + (on_q < 0).sum()), len(scores)
        wilson = binomtest(right, n).proportion_ci(method="wilson")
        found["accuracy"] = right / n, wilson.low, wilson.high
    ratio = fisher_ratio(folded(p, of_p), folded(q, of_q))  # held against its definition elsewhere
    found["fisher_ratio"] = ratio.value.item(), ratio.low.item(), ratio.high.item()
    return found


def expected_separation(stored, contrasts, sites=SEQUENTIAL, n_layers=LAYERS):
    shape = (len(contrasts), len(sites), 2, n_layers)
    names = [f"{name}{end}" for name in ("auroc", "accuracy", "fisher_ratio") for end in ("", "_low", "_high")]
    expected = {name: np.full(shape, np.nan) for name in names}
    expected |= {f"n_{side}": np.zeros((len(contrasts), 2)) for side in ("positive", "negative")}
    for row, one in enumerate(contrasts.values()):
        sides = [one["positive"], one["negative"]]
        excluded = [sample for side in sides for sample in QUARANTINED.get(side, {})] if one["paired"] else []
        indices = [stored.usable(side, excluded) for side in sides]
        for site, position, layer in np.ndindex(*shape[1:]):
            p, q = (stored.at(side, sites[site], position - 2, layer, excluded) for side in sides)
            if p is None or q is None:
                continue
            expected["n_positive"][row, position], expected["n_negative"][row, position] = len(p), len(q)
            for name, interval in separated(p, q, *indices).items():
                for end, value in zip(("", "_low", "_high"), interval, strict=True):
                    expected[f"{name}{end}"][row, site, position, layer] = value
    return expected


def test_separation_equals_its_definition_for_any_chunking(surveyed):
    group = assert_group(surveyed.run, "separation", expected_separation(surveyed, CONTRASTS))
    at_end = group.sel(position=-1)
    assert at_end["n_positive"].values.tolist() == [12, 12, 8, 12, 12, 1, 6]
    assert at_end["n_negative"].values.tolist() == [12, 13, 12, 12, 12, 13, 13]
    assert np.isnan(at_end["auroc"].sel(contrast=["itself", "mirrored", "lonely"])).all()
    assert np.isfinite(at_end["auroc"].sel(contrast=["refusal", "unpaired", "subject", "still"])).all()


def test_fewer_samples_than_folds_give_nan(tmp_path):
    arrays = {"bad": draw(4), "good": draw(9, seed=1)}
    contrasts = {"few": contrast("bad", "good")}
    run = store_run(tmp_path, arrays, contrasts=contrasts)
    stored = Stored(run, arrays, {name: of_set["resid_pre"][:, :, -1] for name, of_set in arrays.items()})
    analyse(run, contrasts, None, silent, requested={"separation"})
    group = assert_group(run, "separation", expected_separation(stored, contrasts))
    assert np.isnan(group["fisher_ratio"]).all()
    assert np.isfinite(group["auroc"]).all()


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
    for prefix in ("", "on_sphere_"):
        assert (curves[f"{prefix}variance_max"] == 0).all()
        np.testing.assert_allclose(curves[f"{prefix}cosine_of_means_debiased"], 1, atol=1e-12)
    assert (curves["difference_norm"] == 0).all()
