"""CKA between the inputs of branches and what they add, from captured outputs or from differences of the stream."""

import numpy as np
from support.analysing import survey_gram
from support.gram_cases import debiased_cka, in_spaces
from support.result_cases import draw, silent
from support.stored import store_run

from theodolite.spec_options import GramSpec
from theodolite.store.result_reader import read_group

WIDTH, LAYERS = 8, 3


def cka_of(run, step, space="raw", output="branch"):
    """The CKA of the last position of the set `bad`, by layer."""
    at = {"set": "bad", "position": -1, "sublayer": step, "output": output, "space": space}
    return read_group(run, "gram")["sublayer_cka"].sel(at)


def test_captured_outputs_of_branches_are_used_instead_of_differences(tmp_path):
    arrays = {"bad": draw(9, ("resid_pre", "resid_mid", "attn_out", "mlp_out"), seed=2)}
    run = store_run(tmp_path, arrays)
    survey_gram(run, {}, GramSpec(), None, silent)
    at_last = {site: values[:, -1].astype(np.float64) for site, values in arrays["bad"].items()}
    for step, entering, added in (("attention", "resid_pre", "attn_out"), ("mlp", "resid_mid", "mlp_out")):
        expected = [debiased_cka(at_last[entering][:, layer], at_last[added][:, layer]) for layer in range(LAYERS)]
        np.testing.assert_allclose(cka_of(run, step), expected, rtol=1e-9)
        moved = [
            debiased_cka(*(in_spaces(at_last[site][:, layer])["sphere"] for site in (entering, added)))
            for layer in range(LAYERS)
        ]
        np.testing.assert_allclose(cka_of(run, step, "sphere"), moved, rtol=1e-9)


def test_branches_of_parallel_blocks_read_the_input_of_the_block(tmp_path):
    arrays = {"bad": draw(9, ("resid_pre", "attn_out", "mlp_out"), seed=2)}
    run = store_run(tmp_path, arrays, final={"bad": draw(9, seed=3)["resid_pre"][:, :, 0]})
    survey_gram(run, {}, GramSpec(), None, silent)
    pre, attn, mlp = (arrays["bad"][site][:, -1].astype(np.float64) for site in ("resid_pre", "attn_out", "mlp_out"))
    for step, added in (("attention", attn), ("mlp", mlp)):
        expected = [debiased_cka(pre[:, layer], added[:, layer]) for layer in range(LAYERS)]
        np.testing.assert_allclose(cka_of(run, step), expected, rtol=1e-9)
    expected = [debiased_cka(pre[:, layer], pre[:, layer + 1] - pre[:, layer]) for layer in range(LAYERS - 1)]
    np.testing.assert_allclose(cka_of(run, "block")[:-1], expected, rtol=1e-9)


def test_parallel_blocks_without_outputs_have_only_the_branches_of_the_block(tmp_path):
    run = store_run(tmp_path, {"bad": draw(9, ("resid_pre",))})
    survey_gram(run, {}, GramSpec(), None, silent)
    assert np.isnan(cka_of(run, "attention")).all()
    assert np.isnan(cka_of(run, "mlp")).all()
    assert np.isfinite(cka_of(run, "block")[:-1]).all()


def test_blocks_that_are_no_sums_have_branches_only_from_captured_outputs(tmp_path):
    arrays = {"bad": draw(9, ("resid_pre", "resid_mid", "attn_out"))}
    run = store_run(tmp_path, arrays, parity={"branches_add": False})
    survey_gram(run, {}, GramSpec(), None, silent)
    assert np.isfinite(cka_of(run, "attention")).all()
    assert np.isnan(cka_of(run, "mlp")).all()
    assert np.isnan(cka_of(run, "block")).all()


def test_the_skip_makes_cka_large_although_the_branch_is_independent(tmp_path):
    """Attention adds a hundredth of independent noise: the sum keeps the geometry, the branch has none of it."""
    rng = np.random.default_rng(0)
    pre = rng.normal(size=(60, 1, LAYERS, WIDTH)) * np.geomspace(1, 0.3, WIDTH)
    arrays = {"bad": {"resid_pre": pre, "resid_mid": pre + 0.01 * rng.normal(size=pre.shape)}}
    run = store_run(tmp_path, {"bad": {site: values.astype(np.float32) for site, values in arrays["bad"].items()}}, 30)
    survey_gram(run, {}, GramSpec(), None, silent)
    assert (cka_of(run, "attention", output="output") > 0.999).all()
    assert (abs(cka_of(run, "attention")) < 0.15).all()
