"""Check that responses about a finished run equal its stored results, bit for bit."""

import base64

import numpy as np
from support.each import each
from support.serving import SITES, assert_problem, numbers, pages_of, stored_group

from theodolite.groups import GROUPS
from theodolite.query.curves import STATISTICS
from theodolite.sites import Site, depth

RUN = "/v1/runs/tiny-0"


@each("group", ["curves", "separation", "gram", "travel", "moments"])
def test_every_curve_equals_the_stored_values(client, library, group):
    stored = stored_group(library, "tiny-0", group)
    names = [name for name, one in STATISTICS.items() if one.group == group]
    items = [item for page in pages_of(client, f"{RUN}/curves", statistic=names, limit=1000) for item in page]
    seen = set()
    for item in items:
        one = STATISTICS[item["statistic"]]
        values = stored[one.variable.name].sel(one.at, drop=True)
        ends = values.sel(estimate=["low", "high"]) if "estimate" in values.dims else None
        values = values.sel(estimate="value") if "estimate" in values.dims else values
        at = {dim: item[dim] for dim in values.dims if dim != "layer"}
        seen.add((item["statistic"], *at.values()))
        np.testing.assert_array_equal(numbers(item["value"]), values.sel(at).values)
        assert item["layer"] == stored["layer"].values.tolist()
        site = Site(item["site"]) if "site" in at else Site.RESID_PRE
        assert item["depth"] == [depth(site, layer) for layer in item["layer"]]
        assert item["units"] == values.attrs["units"]
        assert item["description"].startswith(values.attrs["description"])
        assert all(f"{axis}={label}" in item["description"] for axis, label in one.at.items())
        for end in ("low", "high"):
            if ends is None:
                assert item[end] is None
            else:
                np.testing.assert_array_equal(numbers(item[end]), ends.sel({**at, "estimate": end}).values)
    assert len(seen) == len(items) > 0
    assert any(None in item["value"] for item in items) or group == "curves"


def test_a_curve_has_its_numbers_of_prompts(client, library):
    stored = stored_group(library, "tiny-0", "curves")
    for item in client.get(f"{RUN}/curves", params={"statistic": "cosine_of_means"}).json()["items"]:
        at = {"contrast": item["contrast"], "position": item["position"]}
        counts = stored["n_used"].sel(at).values.tolist()
        assert item["n"] == dict(zip(("n_positive", "n_negative"), counts, strict=True))
    count = stored_group(library, "tiny-0", "moments")["count"]
    for item in client.get(f"{RUN}/curves", params={"statistic": "norm_mean"}).json()["items"]:
        assert item["n"] == {"count": int(count.sel(set=item["set"], position=item["position"]))}


def test_without_a_statistic_the_group_curves_is_returned(client):
    items = [item for page in pages_of(client, f"{RUN}/curves") for item in page]
    assert {item["statistic"] for item in items} == {name for name, one in STATISTICS.items() if one.group == "curves"}


@each(
    "params, expected",
    [
        ({"set": "nouns"}, {"set": {"nouns"}}),
        ({"set": ["nouns", "harmful"]}, {"set": {"nouns", "harmful"}}),
        ({"contrast": "subject"}, {"contrast": {"subject"}}),
        ({"contrast": ["subject", "refusal"]}, {"contrast": {"subject", "refusal"}}),
        ({"site": "resid_mid"}, {"site": {"resid_mid"}}),
        ({"site": list(SITES)}, {"site": set(SITES)}),
        ({"position": -1}, {"position": {-1}}),
        ({"position": [-1, -2]}, {"position": {-1, -2}}),
        ({"set": "harmful", "site": "resid_pre", "position": -2}, {"set": {"harmful"}, "site": {"resid_pre"}}),
        ({"statistic": ["auroc", "mean_cosine"]}, {"statistic": {"auroc", "mean_cosine"}}),
        ({"statistic": ["auroc", "mean_cosine"], "set": "nouns"}, {"statistic": {"mean_cosine"}, "set": {"nouns"}}),
    ],
)
def test_filters_select_exactly_the_named_labels(client, params, expected):
    statistics = {"statistic": params["statistic"]} if "statistic" in params else {}
    everything = [item for page in pages_of(client, f"{RUN}/curves", **statistics) for item in page]
    selected = [item for page in pages_of(client, f"{RUN}/curves", **params) for item in page]
    for field, values in expected.items():
        assert {item[field] for item in selected} == values
    wanted = {field: values if isinstance(values, list) else [values] for field, values in params.items()}
    passing = [item for item in everything if all(item.get(field) in values for field, values in wanted.items())]
    assert sorted(selected, key=str) == sorted(passing, key=str)


@each("limit", [1, 7, 18, 1000])
def test_pages_reach_every_curve_once_and_in_the_same_order(client, limit):
    pages = pages_of(client, f"{RUN}/curves", set="harmful", limit=limit)
    assert all(len(page) == limit for page in pages[:-1])
    assert [item for page in pages for item in page] == pages_of(client, f"{RUN}/curves", set="harmful")[0]


def test_a_cursor_past_the_end_gives_an_empty_page(client):
    cursor = client.get("/v1/runs", params={"limit": 1}).json()["next"]
    assert client.get("/v1/runs", params={"limit": 1, "cursor": cursor, "model": "tiny"}).json()["items"]
    ours = base64.b32decode(client.get(f"{RUN}/curves", params={"limit": 1}).json()["next"]).decode()
    far = base64.b32encode(f"100000.{ours.partition('.')[2]}".encode()).decode()
    answer = client.get(f"{RUN}/curves", params={"cursor": far}).json()
    assert (answer["items"], answer["next"]) == ([], None)


def test_a_cursor_of_older_results_is_rejected(client):
    """A cursor of another run has another digest, like a cursor of older results."""
    other = client.get("/v1/runs/tiny-1/curves", params={"limit": 1}).json()["next"]
    assert_problem(client.get(f"{RUN}/curves", params={"cursor": other}), 409, "start again")
    table = client.get("/v1/runs/tiny-1/tables/growth", params={"limit": 1}).json()["next"]
    assert_problem(client.get(f"{RUN}/tables/growth", params={"cursor": table}), 409, "start again")


@each("cursor", ["x", "1", "AAAA", "é", "%00", "=" * 8, "GEYDAMBQGE" * 6, "FUYQ====", ""])
def test_an_invalid_cursor_is_rejected(client, cursor):
    assert_problem(client.get("/v1/runs", params={"cursor": cursor}), 422, "cursor")


@each("contrast", ["refusal", "subject"])
@each("site", SITES)
def test_a_direction_equals_the_stored_unit_vector(client, library, contrast, site):
    stored = stored_group(library, "tiny-0", "directions")["direction"].sel(space="raw")
    for layer in range(4):
        answer = client.get(f"{RUN}/directions/{contrast}", params={"site": site, "layer": layer}).json()
        labels = {"contrast": contrast, "site": site, "layer": layer, "position": -1}
        assert {name: answer[name] for name in labels} == labels
        assert answer["d_model"] == 8
        np.testing.assert_array_equal(answer["direction"], stored.sel(labels).values)
        np.testing.assert_allclose(np.linalg.norm(answer["direction"]), 1, rtol=1e-12)


def test_a_direction_at_another_position_is_the_stored_one(client, library):
    params = {"site": "resid_pre", "layer": 2, "position": -2}
    answer = client.get(f"{RUN}/directions/refusal", params=params).json()
    stored = stored_group(library, "tiny-0", "directions")["direction"].sel(space="raw", contrast="refusal", **params)
    np.testing.assert_array_equal(answer["direction"], stored.values)
    assert_problem(client.get(f"{RUN}/directions/subject", params=params), 422, "subject has no direction at resid_pre")


def test_a_run_is_described_in_full(client):
    description = client.get(RUN).json()
    assert description["run_id"] == "tiny-0"
    assert description["state"] == "complete"
    assert description["sets"]["harmful"]["n_samples"] == 10
    assert description["sets"]["nouns"]["positions"] == [-1]
    assert description["spec"]["contrasts"]["refusal"]["positive"] == "harmful"
    assert description["parity"]["max_error"] == 1e-6
    assert description["results"]["travel"]["path_length"] == ["set", "position", "summary"]
    assert set(description["results"]) == {"curves", "directions", "gram", "moments", "separation", "travel"}
    assert all(
        set(description["results"][group]) == {one.name for one in GROUPS[group].variables}
        for group in description["results"]
    )
    assert "report" not in description


def test_two_runs_never_mix(client, library):
    """Both runs have the same groups, and the cached results of one are not returned for the other."""
    for run_id in ("tiny-0", "tiny-1", "tiny-0", "tiny-1"):
        params = {"statistic": "cosine_of_means", "contrast": "refusal", "position": -1, "site": "resid_mid"}
        (item,) = client.get(f"/v1/runs/{run_id}/curves", params=params).json()["items"]
        stored = stored_group(library, run_id, "curves")["cosine_of_means"]
        labels = {"contrast": "refusal", "position": -1, "site": "resid_mid", "space": "raw"}
        np.testing.assert_array_equal(item["value"], stored.sel(labels).values)
        assert len(item["layer"]) == {"tiny-0": 4, "tiny-1": 6}[run_id]
        growth = client.get(f"/v1/runs/{run_id}/tables/growth").json()
        assert growth["run_id"] == run_id
    first, second = (client.get(f"/v1/runs/{run_id}/figures/gram.shape").json() for run_id in ("tiny-0", "tiny-1"))
    assert first != second


def test_the_etag_of_a_curve_is_that_of_its_group_in_any_order_of_labels(client):
    names = ("step_norm@sublayer=mlp,summary=mean", "step_norm@summary=mean,sublayer=mlp")
    first, second = (client.get(f"{RUN}/curves", params={"statistic": name}) for name in names)
    assert first.json() == second.json()
    assert first.headers["etag"] == second.headers["etag"]
