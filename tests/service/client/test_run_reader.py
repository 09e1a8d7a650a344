"""Check that a run from a service and from its store has the same methods, types and numbers, bit for bit."""

import subprocess
import sys
from functools import partial

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from IPython.core.completer import IPCompleter, provisionalcompleter
from support.each import each
from support.serving import stored_group

import theodolite
from theodolite.errors import (
    FigureNotFoundError,
    ResultsNotFoundError,
    RunNotFoundError,
    SiteNotFoundError,
    SpecError,
    TableNotFoundError,
)
from theodolite.export import FORMATS, suffix
from theodolite.query.curves import STATISTICS

QUESTIONS = {
    "curves": lambda run: run.curves(),
    "curves, narrowed": lambda run: run.curves("auroc", contrast="refusal", site=["resid_mid"], position=-1),
    "curves of sets": lambda run: run.curves("variance_mean", set=["nouns", "harmful"]),
    "curves of whole numbers": lambda run: run.curves("variance_max_feature", set="harmful"),
    "curves of blocks": lambda run: run.curves("step_norm@sublayer=attention,summary=mean"),
    "all curves as a table": lambda run: run.curves_frame(),
    "curves of two groups as a table": lambda run: run.curves_frame(["auroc", "mean_cosine"], position=[-1]),
    "direction": lambda run: run.direction("subject", "resid_pre", 3),
    "direction at a position": lambda run: run.direction("refusal", "resid_mid", 0, -2),
    "moments": lambda run: run.group("moments"),
    "some of separation": lambda run: run.group("separation", ["auroc", "n_used"], contrast="refusal"),
    "gram": lambda run: run.group("gram", set=["nouns"], layer=[1, 3]),
    "travel": lambda run: run.group("travel", "path_length"),
    "growth": lambda run: run.table("growth"),
    "prompts": lambda run: run.prompts("harmful"),
    "prompts by margin": lambda run: run.prompts("harmless", contrast="subject", site="resid_pre", order="margin"),
    "prompts at a layer": lambda run: run.prompts("nouns", layer=2, order="-margin"),
    "prompt": lambda run: run.prompt("harmful", 3),
    "curves as they are stored": lambda run: run.table("curves"),
    "sections": lambda run: run.sections(),
    "section": lambda run: run.section("curves"),
    "missing section": lambda run: run.section("weights"),
    "figure": lambda run: run.figure("curves.refusal.-1"),
    "one panel": lambda run: run.figure("auroc", panel="AUROC"),
    "numbers": lambda run: run.numbers(),
    "description": lambda run: {name: run.describe()[name] for name in ("model", "sets", "spec", "parity", "results")},
}
QUESTIONS_OF_HEADS = {
    "atlas": lambda run: run.heads("ov"),
    "atlas of qk": lambda run: run.heads(),
    "head": lambda run: vars(run.head(0, 0)),
    "head without tokens": lambda run: vars(run.head(2, 1, "ov")),
    "tokens": lambda run: run.table("head_tokens"),
}


def assert_same(one, other):
    assert type(one) is type(other)
    if isinstance(one, xr.Dataset):
        xr.testing.assert_identical(one, other)
        assert {name: one[name].dtype for name in one.variables} == {name: other[name].dtype for name in one.variables}
    elif isinstance(one, pd.DataFrame):
        pd.testing.assert_frame_equal(one, other)
    elif isinstance(one, dict) and "tokens" in one:
        assert one.keys() == other.keys()
        for name in one:
            assert_same(one[name], other[name])
    elif hasattr(one, "to_json"):
        assert one.to_json() == other.to_json()
    else:
        np.testing.assert_equal(one, other)


@pytest.fixture(scope="module")
def near(shelf):
    return theodolite.open_run(shelf, "tiny-0")


@pytest.fixture(scope="module")
def far(service):
    return service.run("tiny-0")


@each("question", QUESTIONS)
def test_a_service_and_a_store_return_the_same(near, far, question):
    assert_same(QUESTIONS[question](far), QUESTIONS[question](near))


@each("question", QUESTIONS_OF_HEADS)
def test_a_service_and_a_store_return_the_same_heads(shelf, service, question):
    ask = QUESTIONS_OF_HEADS[question]
    assert_same(ask(service.run("heads-0")), ask(theodolite.open_run(shelf, "heads-0")))


@each("source", ["near", "far"])
def test_curves_have_the_stored_values_units_intervals_depth_and_counts(shelf, source, request):
    run, stored = request.getfixturevalue(source), stored_group(shelf, "tiny-0", "curves")
    result = run.curves("cosine_of_means_debiased")
    assert result["value"].dims == ("contrast", "site", "position", "layer")
    cosine = stored["cosine_of_means_debiased"].sel(space="raw")
    for name in ("value", "low", "high"):
        np.testing.assert_array_equal(result[name], cosine.sel(estimate=name))
        assert result[name].attrs["units"] == "1"
        assert result[name].attrs["description"]
    assert result["depth"].values.tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    np.testing.assert_array_equal(result["n_positive"], stored["n_used"].sel(prompt_side="positive"))
    assert result.attrs == {"statistic": "cosine_of_means_debiased"}


@each("source", ["near", "far"])
@each("group", ["separation", "gram", "travel", "moments"])
def test_a_whole_group_is_the_stored_dataset(shelf, source, group, request):
    xr.testing.assert_identical(request.getfixturevalue(source).group(group), stored_group(shelf, "tiny-0", group))


@each("source", ["near", "far"])
@each(
    "group, names, at",
    [
        ("separation", ["auroc"], {"contrast": ["refusal"]}),
        ("separation", ["auroc", "accuracy"], {"site": ["resid_mid"]}),
        ("gram", ["linear_cka"], {"set": ["nouns", "harmful"]}),
        ("travel", ["step_norm"], {"layer": [0, 3]}),
        ("moments", ["mean"], {"set": ["harmful"], "position": [-2]}),
    ],
)
def test_a_group_is_narrowed_by_statistics_and_labels(shelf, source, group, names, at, request):
    stored = stored_group(shelf, "tiny-0", group)[names].sel(at)
    xr.testing.assert_identical(request.getfixturevalue(source).group(group, names, **at), stored)


@each("source", ["near", "far"])
@each("circuit", ["qk", "ov"])
def test_the_atlas_has_the_stored_values_of_every_head(shelf, service, source, circuit):
    run = service.run("heads-0") if source == "far" else theodolite.open_run(shelf, "heads-0")
    atlas, stored = run.heads(circuit), stored_group(shelf, "heads-0", "heads").sel(circuit=circuit, offset=0)
    for name in ("effective_rank", "stable_rank", "coverage_99"):
        xr.testing.assert_identical(atlas[name].variable, stored[name].variable)
    np.testing.assert_array_equal(atlas["leading_singular_value"], stored["singular_values"].isel(rank=0))
    assert ("copying_score" in atlas) == (circuit == "ov")
    assert {side.partition("_")[0] for side in atlas["side"].values.tolist()} == {circuit}
    with pytest.raises(SpecError, match="heads-0 has no offset 7; it has 0"):
        run.heads(circuit, 7)


@each("source", ["near", "far"])
def test_missing_values_are_nan(shelf, source, request):
    run = request.getfixturevalue(source)
    result = run.curves(contrast="subject", position=-2)["value"]  # nouns has only the last token
    assert result.dtype == np.float64
    assert result.isnull().all()
    frame = run.curves_frame("variance_mean")
    assert frame.dtypes[["value", "low", "high"]].tolist() == [np.float64] * 3
    assert frame["low"].isna().all()
    moments = run.group("moments", ["mean", "count"], set="nouns")
    assert moments["mean"].sel(position=-2).isnull().all()
    assert moments["count"].dtype == np.int64


def test_one_label_drops_its_dimension_and_a_list_keeps_it(near):
    assert near.curves("auroc", contrast="refusal", site="resid_mid", position=-1)["value"].dims == ("layer",)
    assert near.curves("auroc", contrast=["refusal"], site="resid_mid", position=[-1])["value"].sizes == {
        "contrast": 1,
        "position": 1,
        "layer": 4,
    }
    of_layer = near.group("gram", "mean_cosine", set="nouns", layer=2)
    assert of_layer["mean_cosine"].dims == ("site", "position", "space")
    assert near.curves("auroc", site=["resid_mid", "resid_mid"])["value"].sizes["site"] == 1


@each("source", ["near", "far"])
def test_directions_are_the_stored_unit_vectors(shelf, source, request):
    result = request.getfixturevalue(source).direction("refusal", "resid_mid", 2)
    stored = stored_group(shelf, "tiny-0", "directions")["direction"].sel(space="raw")
    np.testing.assert_array_equal(result, stored.sel(contrast="refusal", site="resid_mid", layer=2, position=-1))
    assert result.dtype == np.float64
    np.testing.assert_allclose(np.linalg.norm(result), 1, rtol=1e-12)


@each("source", ["near", "far"])
def test_changing_a_returned_object_does_not_change_the_cache(source, request):
    run = request.getfixturevalue(source)
    before = run.group("gram")["mean_cosine"].copy()
    run.group("gram")["mean_cosine"].values[...] = 7
    run.direction("refusal", "resid_pre", 1)[...] = 7
    xr.testing.assert_identical(run.group("gram")["mean_cosine"], before)
    assert abs(run.direction("refusal", "resid_pre", 1)).max() <= 1


@each("format", FORMATS)
def test_a_service_and_a_store_export_the_same_bytes(near, far, tmp_path, monkeypatch, format):
    contents = []
    for name, run in (("near", near), ("far", far)):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        files = [run.export("refusal", format=format), run.export("refusal", layer=3, position=-2, format=format)]
        assert str(files[0]) == f"tiny-0.refusal.resid_pre.{suffix(format)}"
        assert str(files[1]) == f"tiny-0.refusal.resid_pre.3.{suffix(format)}"
        contents.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert contents[0] == contents[1]
    assert len(contents[0]) == (4 if format == "npy" else 2)


@each("source", ["near", "far"])
def test_an_export_that_fails_writes_no_file(source, request, tmp_path):
    run = request.getfixturevalue(source)
    with pytest.raises(SpecError, match="format: given 'onnx'; allowed: safetensors, npy, gguf, vllm-lens, json"):
        run.export("refusal", format="onnx", output=tmp_path / "a")
    with pytest.raises(SpecError, match="contrast: tiny-0 has no 'other'; it has refusal, subject"):
        run.export("other", format="npy", output=tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


@each("source", ["near", "far"])
def test_statistics_and_labels_are_those_that_the_methods_accept(source, request):
    run = request.getfixturevalue(source)
    statistics = run.statistics()
    assert set(statistics["group"]) == {"moments", "curves", "directions", "separation", "travel", "gram"}
    along_depth = statistics[statistics["along_depth"]]["statistic"]
    assert {"auroc", "norm_mean", "cosine_of_means_debiased"} < set(along_depth)
    assert set(along_depth) == {name for name, one in STATISTICS.items() if one.group in set(statistics["group"])}
    assert run.curves_frame(list(along_depth))["statistic"].nunique() == len(along_depth)
    assert statistics[["dims", "units", "description"]].map(bool).all(axis=None)
    for name, group in statistics.groupby("group"):
        # A statistic with axes is listed once for each of their labels.
        assert set(run.group(name).data_vars) <= {statistic.partition("@")[0] for statistic in group["statistic"]}
    labels = run.labels()
    assert labels == {
        "set": ["harmful", "harmless", "nouns"],
        "contrast": ["refusal", "subject"],
        "site": ["resid_pre", "resid_mid"],
        "position": [-2, -1],
        "layer": [0, 1, 2, 3],
    }
    accepted = run.curves("norm_mean", set=labels["set"], site=labels["site"], position=labels["position"])
    assert accepted["value"].shape == (3, 2, 2, 4)


@each("source", ["near", "far"])
def test_completion_offers_only_what_a_caller_uses(source, request):
    run = request.getfixturevalue(source)
    completer = IPCompleter(namespace={"run": run, "theodolite": theodolite}, use_jedi=False)

    def offered_after(text):
        with provisionalcompleter():
            return {completion.text.rpartition(".")[2] for completion in completer.completions(text, len(text))}

    offered = offered_after("run.")
    assert offered == set(dir(run))
    assert {"curves", "export", "labels", "statistics", "id"} < offered
    assert not [name for name in dir(run) if name.startswith("_")]
    assert {"Client", "open_run", "runs"} <= offered_after("theodolite.")


def test_a_head_has_its_spectrum_and_tokens(shelf):
    run = theodolite.open_run(shelf, "heads-0")
    stored = stored_group(shelf, "heads-0", "heads").sel(circuit="qk", offset=0, layer=0, head=0)
    card = run.head(0, 0)
    assert repr(card).startswith("Head(name='L0H0', circuit='qk'")
    np.testing.assert_array_equal(card.singular_values, stored["singular_values"])
    assert card.tokens["token"].tolist() == [" <script>", "naïve", "\n"]
    assert np.isnan(run.head(2, 1, "ov").effective_rank)
    assert run.head(1, 1).tokens.columns.tolist() == card.tokens.columns.tolist()


MISTAKES = {
    "statistic: given 'cosine'.* allowed names, .*cosine_of_means": (SpecError, lambda run: run.curves("cosine")),
    "contrast: tiny-0 has no 'other'; it has: refusal": (SpecError, lambda run: run.curves(contrast="other")),
    "layer: tiny-0 has no 4; it has 0 to 3": (SpecError, lambda run: run.direction("refusal", "resid_pre", 4)),
    "group: given 'curve'; allowed: moments, separation": (SpecError, lambda run: run.group("curve")),
    "head: results cannot be narrowed by this; allowed: set": (SpecError, lambda run: run.group("gram", head=1)),
    "statistic: heads has no 'left_vectors'": (SpecError, lambda run: run.group("heads", "left_vectors")),
    "statistic: gram has no 'auroc'": (SpecError, lambda run: run.group("gram", "auroc")),
    "tiny-0 has no finished results 'sphere'": (ResultsNotFoundError, lambda run: run.group("sphere")),
    "there is no section 'poems'; there are separation": (ResultsNotFoundError, lambda run: run.section("poems")),
    "tiny-0 has no table 'heads'; it has": (TableNotFoundError, lambda run: run.table("heads")),
    "tiny-0 has no figure 'curves.x'": (FigureNotFoundError, lambda run: run.figure("curves.x")),
}


@each("source", ["near", "far"])
@each("message", MISTAKES)
def test_a_service_and_a_store_raise_the_same_errors(message, source, request):
    error, ask = MISTAKES[message]
    with pytest.raises(error, match=message) as raised:
        ask(request.getfixturevalue(source))
    assert type(raised.value) is error


def test_the_error_for_an_unknown_head_lists_the_existing_heads(shelf, service):
    for run in (service.run("heads-0"), theodolite.open_run(shelf, "heads-0")):
        with pytest.raises(SiteNotFoundError, match="heads-0 has no layer 9; it has 0 to 3"):
            run.head(9, 0)


def test_runs_without_results_and_unknown_runs_raise_errors(shelf, service):
    readers = {"/v1/runs lists": service.run, "captured-0, heads-0, tiny-0": partial(theodolite.open_run, shelf)}
    for named, open_it in readers.items():
        captured = open_it("captured-0")
        assert captured.describe()["state"] == "captured"
        with pytest.raises(ResultsNotFoundError, match="captured-0"):
            captured.curves()
        with pytest.raises(RunNotFoundError, match=named):
            open_it("tiny-9")


def test_html_in_notebooks_is_escaped(near, monkeypatch):
    named = "<script>alert(1)</script>"
    about = {"model": {"name": named, "n_layers": 1, "d_model": 1, "dtype": named}, "sets": {named: {"n_samples": 1}}}
    about |= {"contrasts": [named], "results": {named: {}}, "state": named}
    monkeypatch.setattr(type(near), "describe", lambda _run: about)
    run = near
    run.id, run.url = "<script>", "http://<script>alert(0)</script>"
    assert "<script" not in run._repr_html_()
    assert run._repr_html_().count("&lt;script&gt;") == 8
    assert repr(run).splitlines()[0] == "<RunReader <script> of http://<script>alert(0)</script>"


def test_importing_the_package_imports_nothing_else():
    code = "import sys, theodolite; print(*(name for name in ('numpy', 'httpx', 'xarray') if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
    with pytest.raises(AttributeError, match="module 'theodolite' has no attribute 'klient'"):
        theodolite.klient  # noqa: B018 - accessing it raises
