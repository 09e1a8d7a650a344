"""The traces of a contrast's figure tell their site and set, by which the page shows and hides them."""

from support.finished_runs import finished_run

from theodolite.groups.curves.figures import ContrastView, contrast_figure
from theodolite.store.result_reader import read_group

CURVES = {
    "cosine_of_means": {"raw": 0.9},
    "cosine_of_means_debiased": {"value": {"raw": 0.95}, "low": {"raw": 0.9}, "high": {"raw": 1.0}},
    "variance_mean": {"raw": 2.0},
    "variance_max": {"raw": 50.0},
}


def test_each_trace_tells_its_site_and_its_set(tmp_path):
    curves = read_group(finished_run(tmp_path, {"curves": CURVES}), "curves")
    figure = contrast_figure(curves, ContrastView("refusal", "harmful", "harmless", -1))
    for site in ("resid_pre", "resid_mid"):
        names = [trace.name for trace in figure.data if trace.meta == {"site": site}]
        short = site.removeprefix("resid_")
        assert names == ["95 % interval", f"debiased, {short}", f"plain, {short}"]
        for of_set in ("harmful", "harmless"):
            names = [trace.name for trace in figure.data if trace.meta == {"site": site, "set": of_set}]
            assert names == [f"{of_set}, {short}"] * 2
