"""The arrays of `sphere` equal their definitions, written out on the captured arrays."""

import numpy as np
from scipy.stats import chi
from support.analysing import analyse
from support.result_cases import (
    REQUESTED,
    WIDTH,
    assert_group,
    contrast,
    draw,
    norms,
    silent,
)
from support.stored import store_run

from theodolite.sites import Site
from theodolite.store.result_reader import read_group
from theodolite_jobs.groups.sphere.formulas_ellipsoids import ellipsoid_overlaps, scale_correlations, scale_cosines
from theodolite_jobs.groups.sphere.formulas_gaussian import fitted_spreads


def measured(x, norm_layer, total_variance):
    """All variables of one norm over (sample, d_model), sample by sample; `total_variance` of what it reads."""
    norm, d = norm_layer.norm, WIDTH
    mean, std = (lambda values: np.mean(values)), (lambda values: np.std(values, ddof=1) if len(values) > 1 else np.nan)
    found, before, component = {}, [np.nan] * 4, np.nan

    def summary(values):
        return [mean(values), std(values), values.min(), values.max()]

    if norm_layer.reads:
        centred = [sample - sample.mean() if norm.kind == "layer" else sample for sample in x]
        outputs = np.array([c / np.sqrt((c**2).sum() / d + norm.epsilon) for c in centred])
        squares = np.array([(c**2).sum() / d for c in centred])
        lengths = np.sqrt((x**2).sum(axis=1))
        found["euclidean_norm_expected"] = mean(np.sqrt(d * squares / (squares + norm.epsilon)))
        found["worst_deviation"] = 0.0  # but for rounding
        before = summary(lengths)
        component = mean(np.abs(x.sum(axis=1)) / np.sqrt(d) / lengths)
        found["relative_spread"] = [std(lengths) / mean(lengths), std(lengths**2) / mean(lengths**2)]
        standard = [np.sqrt(d - chi.mean(d) ** 2) / chi.mean(d), np.sqrt(2 / d)]
        found["relative_spread_null"] = np.stack([standard, fitted_spreads(x)], axis=-1)
        if total_variance is not None and total_variance > 0:
            found["length_variance_share"] = lengths.var(ddof=1) / total_variance
    else:
        outputs = (x - norm.bias) / norm.scale
    after = np.sqrt((outputs**2).sum(axis=1))
    found["euclidean_norm"] = [before, summary(after)]
    found["mean_component"] = [component, mean(np.abs(outputs.sum(axis=1)) / np.sqrt(d) / after)]
    found["ellipsoid_residual"] = np.abs(after / np.sqrt(d) - 1).max()
    return found


def axes_of(norm):
    centring = np.eye(WIDTH) - 1 / WIDTH if norm.kind == "layer" else np.eye(WIDTH)
    values = np.linalg.eigvalsh(norm.scale[:, None] * centring * norm.scale)[::-1]
    return np.sqrt(np.maximum(values, 0) * WIDTH)


def expected_sphere(stored, all_norms, group):
    sets = list(stored.arrays)
    of_norms = {name: one for name, one in group.data_vars.items() if one.dims[:3] == ("set", "position", "norm")}
    expected = {name: np.full((len(sets), 2, len(all_norms), *one.shape[3:]), np.nan) for name, one in of_norms.items()}
    expected |= {name: np.zeros((len(sets), 2)) for name in ("n_samples", "n_fitted")}
    for row, name in enumerate(sets):
        for column, position in enumerate((-2, -1)):
            if stored.final_at(name, position) is None:
                continue
            expected["n_samples"][row, column] = expected["n_fitted"][row, column] = len(stored.usable(name))
            for index, norm_layer in enumerate(all_norms):
                parts = [
                    stored.final_at(name, position)
                    if site is Site.RESID_FINAL
                    else stored.at(name, str(site), position, norm_layer.layer_index)
                    for site in norm_layer.sites
                ]
                if not parts:
                    continue
                x = sum(parts[1:], parts[0])
                single = len(parts) == 1 and len(x) > 1
                variance = x.var(axis=0, ddof=1).sum() if single else None
                for variable, value in measured(x, norm_layer, variance).items():
                    expected[variable][row, column, index] = value
    expected["semi_axes"] = np.stack([axes_of(norm_layer.norm) for norm_layer in all_norms])
    expected["scale_radii"] = np.stack([np.sort(np.abs(p.norm.scale))[::-1] * np.sqrt(WIDTH) for p in all_norms])
    expected["centre"] = np.stack([norm_layer.norm.bias for norm_layer in all_norms])
    scales = np.stack([norm_layer.norm.scale for norm_layer in all_norms]).astype(np.float64)
    normals = np.stack([norm_layer.norm.scale**-1.0 for norm_layer in all_norms])
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    normals[[norm_layer.norm.kind == "rms" for norm_layer in all_norms]] = np.nan
    overlap, permuted = ellipsoid_overlaps([norm_layer.norm for norm_layer in all_norms])
    expected |= {"scale": scales, "plane_normal": normals, "plane_normal_cosine": np.abs(normals @ normals.T)}
    expected |= {"scale_cosine": scale_cosines(scales), "scale_correlation": scale_correlations(scales)}
    return expected | {"ellipsoid_overlap": overlap, "ellipsoid_overlap_permuted": permuted}


def test_sphere_equals_its_definition_for_any_chunking(surveyed):
    stored, all_norms = surveyed, norms()
    group = read_group(stored.run, "sphere")
    # the least axis of a layer norm is exactly 0; a dense eigenvalue's rounding is 1e-16, its root 1e-8
    semi_axes = group["semi_axes"].values.copy()
    expected = expected_sphere(stored, all_norms, group)
    np.testing.assert_allclose(semi_axes**2, expected["semi_axes"] ** 2, atol=1e-12)
    expected["semi_axes"] = semi_axes
    assert_group(stored.run, "sphere", expected)
    assert group["norm"].values.tolist() == [
        "0.attention",
        "0.mlp_output",
        "1.mlp",
        "1.attention_output",
        "2.mlp_output",
        "final",
    ]
    assert group["norm_kind"].values.tolist() == [norm_layer.which for norm_layer in all_norms]
    assert group["norm_layer"].values.tolist() == [0, 0, 1, 1, 2, -1]


def test_a_zero_vector_makes_only_its_own_statistics_nan(tmp_path):
    arrays = {"bad": draw(9), "good": draw(9, seed=1)}
    arrays["bad"]["resid_mid"][4, 1, 1] = 0
    contrasts = {"refusal": contrast("bad", "good")}
    run = store_run(tmp_path, arrays, contrasts=contrasts)
    analyse(run, contrasts, None, silent, requested=REQUESTED, norms=norms())
    curves = read_group(run, "curves")
    at = {"site": "resid_mid", "layer": 1, "position": -1}
    assert np.isnan(curves["variance_mean"].sel(set="bad", space="sphere", **at))
    assert np.isnan(curves["cosine_of_means"].sel(contrast="refusal", space="sphere", **at))
    assert np.isfinite(curves["variance_mean"].sel(space="raw", **at)).all()
    assert int(np.isnan(curves["variance_mean"].sel(space="sphere")).sum()) == 1
    component = read_group(run, "sphere")["mean_component"].sel(stage="before")
    assert np.isnan(component.sel(set="bad", position=-1, norm="1.mlp"))
