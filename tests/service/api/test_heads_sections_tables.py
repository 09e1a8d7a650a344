"""Check that heads, tables, sections, figures and comparisons over HTTP equal the stored results."""

import io
from pathlib import Path

import fastparquet
import numpy as np
import pandas as pd
import pytest
from support.each import each
from support.encoder_run import TOKENS, VECTORS
from support.finished_runs import finished_run, model_facts
from support.serving import assert_problem, client_of, numbers, pages_of, stored_group

from theodolite.sections.catalogue import figures_of, sections_of, shown_groups
from theodolite.store.runs import open_run

RUN = "/v1/runs/tiny-0"


def table(run, name):
    content = Path(run.url, "tables", f"{name}.parquet").read_bytes()
    return fastparquet.ParquetFile(io.BytesIO(content)).to_pandas()


def plain(frame):
    """Return the rows of a table as dictionaries of JSON types."""
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def test_a_head_has_the_stored_spectrum_and_rows_of_the_table(atlas_client, atlas):
    stored, tokens = stored_group(atlas.store, atlas.id, "heads"), table(atlas, "head_tokens")
    for circuit, layer, head in (("qk", 0, 0), ("ov", 5, 11), ("qk", 3, 7)):
        card = atlas_client.get(f"/v1/runs/{atlas.id}/heads/{layer}/{head}", params={"circuit": circuit}).json()
        at = stored.sel(circuit=circuit, offset=0, layer=layer, head=head, centring="centred")
        assert (card["name"], card["circuit"], card["offset"]) == (f"L{layer}H{head}", circuit, 0)
        np.testing.assert_array_equal(numbers(card["singular_values"]), at["singular_values"].values)
        for name in ("effective_rank", "stable_rank", "coverage_99", "copying_score"):
            value = float(at[name])
            assert card[name] == (None if np.isnan(value) else value)
        rows = tokens[(tokens["layer"] == layer) & (tokens["head"] == head) & (tokens["circuit"] == circuit)]
        assert card["tokens"] == plain(rows[list(card["tokens"][0])])
        assert len(rows) == 2 * VECTORS * 2 * TOKENS  # of both sides and ends


@each(
    "path, message",
    [
        ("heads/6/0", "no layer 6; it has 0 to 5"),
        ("heads/0/12", "no head 12; it has 0 to 11"),
        ("heads/-1/0", "no layer -1; it has 0 to 5"),
        (f"heads/{10**30}/0", "0 to 5"),
        ("heads/0/0?offset=5", "no offset 5; it has 0"),
        ("heads/x/0", "layer"),
        ("heads/0/1.5", "head"),
        ("heads/0/0?circuit=vo", "'qk', 'ov' or 'rotary'"),
        ("heads/0/0?circuit=rotary", "no circuit 'rotary'; it has qk, ov"),
        ("heads/0/0?offset=-1", "offset"),
        (f"heads/0/0?offset={10**40}", "offset"),
    ],
)
def test_the_error_for_an_unknown_head_lists_the_existing_heads(atlas_client, atlas, path, message):
    assert_problem(atlas_client.get(f"/v1/runs/{atlas.id}/{path}"), 422, message)


def test_heads_of_a_run_without_heads_return_404(client):
    assert_problem(client.get(f"{RUN}/heads/0/0"), 404, "heads")


@each("name", ["curves", "gram", "growth", "separation", "travel"])
def test_pages_contain_each_row_of_a_table_once(client, library, name):
    stored = plain(table(open_run(library, "tiny-0"), name))
    pages = pages_of(client, f"{RUN}/tables/{name}", limit=max(1, len(stored) // 3))
    assert len(pages) >= 3
    assert [row for page in pages for row in page] == stored
    assert client.get(f"{RUN}/tables/{name}?limit=1").json()["total"] == len(stored)


def test_every_table_of_an_atlas_is_returned(atlas_client, atlas):
    names = ["bias_tokens", "embedding_sphere", "head_tokens", "norm_tokens", "noun_alignment", "noun_keys", "sphere"]
    names += ["noun_scores", "noun_values"]
    for name in names:
        answer = atlas_client.get(f"/v1/runs/{atlas.id}/tables/{name}", params={"limit": 10_000})
        assert answer.status_code == 200, answer.text
        assert answer.json()["items"] == plain(table(atlas, name))[:10_000]


def test_rows_of_one_layer_and_head_are_filtered(atlas_client, atlas):
    tokens = table(atlas, "head_tokens")
    path = f"/v1/runs/{atlas.id}/tables/head_tokens"
    for params in ({"layer": 2}, {"head": 3}, {"layer": 5, "head": 11}):
        wanted = tokens[np.logical_and.reduce([tokens[name] == value for name, value in params.items()])]
        pages = pages_of(atlas_client, path, **params, limit=100)
        assert [row for page in pages for row in page] == plain(wanted)
    empty = atlas_client.get(path, params={"layer": 9000}).json()
    assert (empty["items"], empty["total"], empty["next"]) == ([], 0, None)


@each(
    "path, status, message",
    [
        (
            "tables/nobody",
            404,
            "no table 'nobody'; it has curves, gram, growth, prompt_score_scales, prompt_scores, separation, travel",
        ),
        ("tables/curves?head=1", 422, "head: the table curves has no such column"),
        ("tables/curves?limit=0", 422, "limit"),
        ("tables/curves?limit=10001", 422, "limit"),
        ("tables/curves?where=layer", 422, "'layer' is not a condition; write COLUMN OPERATOR VALUE"),
        ("tables/curves?where=layer%3Dx", 422, "layer contains numbers, and 'x' is none"),
        ("tables/curves?order=nobody", 422, "nobody: the table curves has no such column"),
        ("tables/curves?layer=-2", 422, "layer"),
        ("tables/curves?layer=x", 422, "layer"),
        ("tables/curves?cursor=zzz", 422, "cursor"),
        ("tables/curves?order=-", 422, "order: given '-'; allowed: a column, or a column after -"),
        ("tables/growth?where=origin_at_limit%3D1", 422, "origin_at_limit contains booleans, and '1' is none"),
    ],
)
def test_the_error_for_an_invalid_table_query_lists_the_allowed_values(client, path, status, message):
    assert_problem(client.get(f"{RUN}/{path}"), status, message)


def test_a_cursor_belongs_to_the_conditions_and_the_order_of_its_page(client):
    path, conditions = f"{RUN}/tables/growth", {"where": ["intercept>=-1e9"], "order": "-intercept"}
    chosen = {**conditions, "limit": 2}
    cursor = client.get(path, params=chosen).json()["next"]
    assert len(cursor) <= 64
    assert client.get(path, params={**chosen, "limit": 3, "cursor": cursor}).status_code == 200
    for other in ({}, {"order": "intercept"}, {"where": []}, {"where": ["intercept>=-1e8"]}, {"layer": 1}):
        params = {**(conditions | other if other else {}), "cursor": cursor}
        assert_problem(client.get(path, params=params), 422, "with the same conditions and the same order")


def test_booleans_are_shown_and_selected(client):
    path = f"{RUN}/tables/growth"
    answers = [client.get(path, params={"where": f"origin_at_limit={value}"}).json() for value in ("true", "false")]
    assert answers[0]["columns"]["origin_at_limit"] == "boolean"
    assert answers[0]["columns"]["intercept"] == "number"
    assert answers[0]["total"] + answers[1]["total"] == client.get(path).json()["total"]
    assert {row["origin_at_limit"] for row in answers[1]["items"]} == {False}


def test_sections_equal_those_of_the_run_and_all_their_figures_are_drawn(client, library):
    run = open_run(library, "tiny-0")
    groups = client.get(f"{RUN}/sections").json()["items"]
    assert groups == shown_groups(run) == ["separation", "curves", "directions", "gram", "travel"]
    drawn = set()
    for group in groups:
        answer = client.get(f"{RUN}/sections/{group}").json()
        expected = sections_of(run, group)
        assert [item["title"] for item in answer["items"]] == [one.title for one in expected]
        assert [item["facts"] for item in answer["items"]] == [one.facts for one in expected]
        names = [one["name"] for item in answer["items"] for one in (*item["figures"], *item["maps"])]
        assert names == [figure.name for figure in figures_of(expected)]
        assert len(set(names)) == len(names)
        for name in names:
            figure = client.get(f"{RUN}/figures/{name}")
            assert figure.status_code == 200, figure.text
            assert set(figure.json()) == {"data", "layout"}
            assert figure.json()["data"]
            drawn.add(name)
    assert {"curves.refusal.-1", "curves.refusal.-2", "gram.shape", "gram.cka.harmful", "separation.subject"} <= drawn


@pytest.mark.nightly
def test_all_figures_in_the_sections_of_an_atlas_are_drawn(atlas_client, atlas):
    path = f"/v1/runs/{atlas.id}"
    of_weights = {"sphere", "weights", "heads", "words"}
    assert of_weights <= set(atlas_client.get(f"{path}/sections").json()["items"])
    for group in of_weights:
        for item in atlas_client.get(f"{path}/sections/{group}").json()["items"]:
            for one in (*item["figures"], *item["maps"]):
                answer = atlas_client.get(f"{path}/figures/{one['name']}")
                assert answer.status_code == 200, answer.text
                assert answer.json()["data"]


def test_sections_and_figures_change_when_an_untrained_twin_is_surveyed(tmp_path):
    results = {
        "curves": {"cosine_of_means_debiased": {"value": {"raw": 0.5}}},
        "separation": {"auroc": {"value": 0.75}},
        "directions": {"direction_cosine": 0.5, "reliability": 0.9},
    }
    run = finished_run(tmp_path, results)
    client = client_of(tmp_path)
    pages = ("sections/curves", "figures/curves.refusal.-1", "sections/directions", "sections/gram")
    paths = [f"/v1/runs/{run.id}/{path}" for path in pages]
    before = [client.get(path) for path in paths]
    facts = model_facts().model_copy(update={"name": "tiny (random weights)", "weights": "random", "seed": 0})
    finished_run(tmp_path, results, facts, "tiny-random-weights-0")
    after = [
        client.get(path, headers={"If-None-Match": old.headers["etag"]})
        for path, old in zip(paths, before, strict=True)
    ]
    assert [answer.status_code for answer in after] == [200, 200, 200, 304]
    assert "untrained twin" not in before[1].text
    assert "untrained twin" in after[1].text
    for index in (0, 2):
        facts = [answer.json()["items"][0]["facts"] for answer in (before[index], after[index])]
        assert ["untrained twin" in " ".join(each) for each in facts] == [False, True]


def test_missing_sections_are_empty_and_unknown_sections_return_404(client):
    assert client.get(f"{RUN}/sections/heads").json()["items"] == []
    known = "separation, curves, probes, directions, heads"
    assert_problem(client.get(f"{RUN}/sections/nobody"), 404, "'nobody'", known)


@each(
    "name, message",
    [
        ("gram.nobody", "gram.shape"),
        ("curves.refusal.-9", "curves.refusal.-1"),
        ("nobody", "separation, curves, directions, gram, travel"),
        ("heads.qk.leading", "separation, curves, directions, gram, travel"),
        ("gram.", "gram.shape"),
        (".", "figures of"),
    ],
)
def test_the_error_for_an_unknown_figure_lists_the_existing_figures(client, name, message):
    path = f"{RUN}/figures/{name}" if name != "." else f"{RUN}/figures/%2e"
    assert_problem(client.get(path), 404, message)


def test_runs_are_compared_on_relative_depth(client, library):
    params = {"run": ["tiny-0", "tiny-1"], "statistic": "auroc", "contrast": "refusal", "site": "resid_mid"}
    answer = client.get("/v1/compare", params=params).json()
    for run_id, n_layers in (("tiny-0", 4), ("tiny-1", 6)):
        rows = [row for row in answer["items"] if row["run_id"] == run_id]
        stored = stored_group(library, run_id, "separation").sel(contrast="refusal", site="resid_mid", position=-1)
        assert [row["relative_depth"] for row in rows] == [
            (2 * layer + 1) / (2 * n_layers) for layer in range(n_layers)
        ]
        for column in ("value", "low", "high"):
            expected = stored["auroc"].sel(estimate=column).values
            np.testing.assert_array_equal(numbers([row[column] for row in rows]), expected)
    assert [row["run_id"] for row in answer["milestones"]] == ["tiny-0", "tiny-1"]
    assert list(answer["statistics"]) == ["auroc"]
    assert answer["auroc_difference"] == [], "the models have other numbers of blocks"
    assert answer["figure"]["data"]


def test_runs_are_compared_at_contrasts_of_other_names(client):
    params = {"run": ["tiny-0", "tiny-1"], "contrast": ["refusal", "tiny-0:subject"]}
    answer = client.get("/v1/compare", params=params).json()
    assert [row["contrast"] for row in answer["milestones"]] == ["subject", "refusal"]
    named = {(row["run_id"], row["contrast"]) for row in answer["items"]}
    assert named == {("tiny-0", "subject"), ("tiny-1", "refusal")}
    unknown = client.get("/v1/compare", params={**params, "contrast": "tiny-2:subject"})
    assert_problem(unknown, 422, "given for tiny-2, which is not one of the compared runs")


def test_a_run_given_twice_is_compared_once(client):
    params = {"run": ["tiny-0", "tiny-1", "tiny-0"], "contrast": "refusal"}
    assert [row["run_id"] for row in client.get("/v1/compare", params=params).json()["milestones"]] == [
        "tiny-0",
        "tiny-1",
    ]


def test_the_bound_of_separation_changes_its_milestone(client, library):
    auroc = stored_group(library, "tiny-0", "separation")["auroc"].sel(contrast="refusal", position=-1)
    bound = float(auroc.sel(estimate="band_low").max())
    for given, expected in ((bound, True), (min(1.0, np.nextafter(bound, 2)), False)):
        params = {"run": "tiny-0", "contrast": "refusal", "bound": repr(float(given))}
        (row,) = client.get("/v1/compare", params=params).json()["milestones"]
        assert (row["separates_at"] != "never") == expected


@each(
    "params, message",
    [
        ({"run": "tiny-0"}, "contrast: not given, and tiny-0 has 2; choose one of: refusal, subject"),
        ({"run": ["tiny-0", "tiny-1"], "contrast": "subject"}, "tiny-1 has no 'subject'; it has: refusal"),
        ({"run": "tiny-0", "statistic": "nobody"}, "cosine_of_means"),
        ({"run": "tiny-0", "contrast": "refusal", "position": -7}, "-2, -1"),
        ({"run": "tiny-0", "contrast": "refusal", "position": 0}, "position"),
        ({"run": "tiny-0", "contrast": "refusal", "site": "nowhere"}, "resid_pre, resid_mid"),
        ({"run": "tiny-0", "statistic": "norm_mean", "set": "nobody"}, "harmful, harmless, nouns"),
        ({"run": "tiny-0", "contrast": "refusal", "set": "harmful"}, "leave it out"),
        ({}, "run"),
        ({"run": [f"run-{number}" for number in range(17)]}, "run"),
        ({"run": "../tiny-0"}, "run"),
        ({"run": "tiny-0", "contrast": "refusal", "bound": "nan"}, "bound"),
        ({"run": "tiny-0", "contrast": "refusal", "bound": 0.4}, "bound"),
    ],
)
def test_the_error_for_an_invalid_comparison_lists_the_allowed_values(client, params, message):
    assert_problem(client.get("/v1/compare", params=params), 422, message)


def test_a_comparison_with_a_run_that_lacks_the_group_is_404(tmp_path):
    params = {"run": finished_run(tmp_path, {"curves": {}}).id, "statistic": "auroc"}
    assert_problem(client_of(tmp_path).get("/v1/compare", params=params), 404, "separation")


def test_the_items_of_a_comparison_form_a_table(client):
    items = client.get("/v1/compare", params={"run": ["tiny-0"], "contrast": "refusal"}).json()["items"]
    assert pd.DataFrame(items)["relative_depth"].between(0, 1).all()
