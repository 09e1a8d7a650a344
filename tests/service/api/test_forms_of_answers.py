"""Check that JSON, Parquet and Arrow have the same content, and that unchanged responses return 304."""

import gzip
import io
import json
from pathlib import Path

import fastparquet
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from support.analysing import analyse
from support.each import each
from support.sealed import reseal
from support.serving import CONTRASTS, assert_problem, client_of, copied, numbers

from theodolite.api.encoding import _ENCODERS, ARROW, CSV, JSON, PARQUET, _csv_answer
from theodolite.store.runs import open_run

RUN = "/v1/runs/tiny-0"
ENDS = ("low", "high", "band_low", "band_high")
COMPARED = "/v1/compare?run=tiny-0&run=tiny-1&contrast=refusal"


def parquet_of(content):
    return fastparquet.ParquetFile(io.BytesIO(content)).to_pandas()


def arrow_of(content):
    return pa.ipc.open_stream(content).read_all().to_pandas()


def same(frame, other):
    assert list(frame.columns) == list(other.columns)
    for name in frame:
        one, two = frame[name].astype(object), other[name].astype(object)
        assert one.where(one.notna(), None).tolist() == two.where(two.notna(), None).tolist()


def rows_of_curves(items):
    return pd.DataFrame(
        [
            {
                "statistic": item["statistic"],
                **{name: item.get(name) or "" for name in ("set", "contrast", "site")},
                "position": item["position"],
                "layer": layer,
                "depth": item["depth"][index],
                "value": item["value"][index],
                **{end: item[end][index] if item[end] else None for end in ENDS},
            }
            for item in items
            for index, layer in enumerate(item["layer"])
        ]
    )


def in_forms(client, path, **params):
    json_, parquet, arrow = (
        client.get(path, params=params, headers={"Accept": form}) for form in (JSON, PARQUET, ARROW)
    )
    for answer, form in ((json_, JSON), (parquet, PARQUET), (arrow, ARROW)):
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == form
        assert "Accept" in answer.headers["vary"]
    same(parquet_of(parquet.content), arrow_of(arrow.content))
    return json_.json(), parquet_of(parquet.content)


@pytest.mark.parametrize(
    "statistics", [["cosine_of_means"], ["auroc", "norm_mean", "step_norm@sublayer=block,summary=mean"]]
)
def test_curves_are_the_same_in_every_form(client, statistics):
    content, frame = in_forms(client, f"{RUN}/curves", statistic=statistics)
    same(frame, rows_of_curves(content["items"]))


def test_a_direction_is_the_same_in_every_form(client):
    content, frame = in_forms(client, f"{RUN}/directions/refusal", site="resid_pre", layer=1)
    assert frame["direction"].tolist() == content["direction"]
    assert frame["d_model"].tolist() == list(range(8))


def test_rows_of_a_table_are_the_same_in_every_form(client):
    content, frame = in_forms(client, f"{RUN}/tables/growth", limit=7)
    same(frame, pd.DataFrame(content["items"]))


def test_a_comparison_is_the_same_in_every_form(client):
    content, frame = in_forms(client, "/v1/compare", run=["tiny-0", "tiny-1"], contrast="refusal")
    same(frame, pd.DataFrame(content["items"]))


def test_a_whole_table_as_parquet_equals_the_stored_bytes(client, library):
    answer = client.get(f"{RUN}/tables/growth", headers={"Accept": PARQUET})
    with open(f"{library}/runs/tiny-0/tables/growth.parquet", "rb") as file:
        assert answer.content == file.read()
    assert answer.headers["content-type"] == PARQUET


def test_a_whole_table_is_offered_as_arrow(client):
    answer = client.get(f"{RUN}/tables/growth", headers={"Accept": ARROW})
    assert answer.status_code == 200
    assert len(arrow_of(answer.content)) == client.get(f"{RUN}/tables/growth").json()["total"]


def test_an_empty_selection_is_a_valid_table(atlas_client, atlas):
    for form in (PARQUET, ARROW):
        path = f"/v1/runs/{atlas.id}/tables/head_tokens?layer=9999"
        answer = atlas_client.get(path, headers={"Accept": form})
        assert answer.status_code == 200, answer.text
        read = parquet_of if form == PARQUET else arrow_of
        assert len(read(answer.content)) == 0


@each(
    "accept, form",
    [
        ("*/*", JSON),
        ("application/*", JSON),
        ("", JSON),
        (f"{PARQUET};q=0.9, {JSON};q=0.1", PARQUET),
        (f"{PARQUET};q=0.1, {JSON};q=0.9", JSON),
        (f"text/html, {ARROW}", ARROW),
        (f"{PARQUET};q=0, {ARROW};q=0.001", ARROW),
        (f"text/html, */*;q=0.1, {PARQUET};q=0.5", PARQUET),
        ("APPLICATION/VND.APACHE.PARQUET", PARQUET),
    ],
)
def test_the_preferred_media_type_is_returned(client, accept, form):
    answer = client.get(f"{RUN}/curves?statistic=auroc", headers={"Accept": accept})
    assert answer.headers["content-type"] == form


def test_a_wildcard_does_not_include_an_excluded_media_type(client):
    answer = client.get(f"{RUN}/curves?statistic=auroc", headers={"Accept": f"{JSON};q=0, */*;q=0.5"})
    assert answer.headers["content-type"] == PARQUET


@pytest.mark.parametrize("accept", ["text/html", f"{JSON};q=0", "application/json;q=nonsense", "image/*"])
def test_the_406_error_lists_the_offered_media_types(client, accept):
    answer = client.get(f"{RUN}/curves?statistic=auroc", headers={"Accept": accept})
    assert_problem(answer, 406, JSON, PARQUET, ARROW)


@each("path", [RUN, "/v1/runs", f"{RUN}/sections", f"{RUN}/figures/gram.shape", f"{RUN}/conclusion"])
def test_routes_without_a_table_offer_only_json(client, path):
    assert_problem(client.get(path, headers={"Accept": PARQUET}), 406, f"this route offers: {JSON}")


def digests(library, run_id="tiny-0"):
    with open(f"{library}/runs/{run_id}/COMPLETE") as file:
        return json.load(file)["groups"]


def get_with_etag(client, path, etag, **headers):
    return client.get(path, headers={"If-None-Match": etag, **headers})


@each(
    "path, group",
    [
        ("curves", "curves"),
        ("curves?statistic=auroc", "separation"),
        ("curves?statistic=norm_mean&set=harmful", "moments"),
        ("directions/refusal?site=resid_pre&layer=0", "directions"),
        ("curves?statistic=mean_cosine", "gram"),
        ("tables/curves?limit=5", "curves"),
    ],
)
def test_the_etag_is_the_digest_of_the_group_that_was_read(client, library, path, group):
    plain = {"Accept-Encoding": "identity"}
    etag = client.get(f"{RUN}/{path}", headers=plain).headers["etag"]
    assert etag == f'"{digests(library)[group]}"'
    for tag in (etag, f"W/{etag}", f'"other", {etag}', f'W/"other",W/{etag}', "*"):
        answer = get_with_etag(client, f"{RUN}/{path}", tag, **plain)
        assert (answer.status_code, answer.content) == (304, b"")
        assert answer.headers["etag"] == etag
    for tag in ('"other"', etag.strip('"'), 'W/"x"', "", '"'):
        assert get_with_etag(client, f"{RUN}/{path}", tag, **plain).status_code == 200


def test_each_representation_has_its_own_etag_weak_if_it_may_be_compressed(client, library):
    digest = digests(library)["separation"]
    path = f"{RUN}/curves?statistic=auroc"
    expected = {"application/json": f'W/"{digest}"', "text/csv": f'W/"{digest}-csv"', PARQUET: f'"{digest}-parquet"'}
    for accepted, etag in expected.items():
        answer = client.get(path, headers={"Accept": accepted, "Accept-Encoding": "gzip"})
        assert answer.headers["etag"] == etag
        assert get_with_etag(client, path, etag, Accept=accepted).status_code == 304
        others = ", ".join(other for other in expected.values() if other != etag)
        assert get_with_etag(client, path, others, Accept=accepted).status_code == 200


def test_flat_responses_are_offered_as_csv(client):
    path = f"{RUN}/curves?statistic=auroc&contrast=refusal"
    answer = client.get(path, headers={"Accept": CSV})
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.text.splitlines()[0] == f"statistic,set,contrast,site,position,layer,depth,value,{','.join(ENDS)}"
    rows, items = pd.read_csv(io.BytesIO(answer.content)), client.get(path).json()["items"]
    assert len(rows) == sum(len(item["layer"]) for item in items) > 4
    for name in ("value", *ENDS):
        np.testing.assert_array_equal(rows[name], numbers([value for item in items for value in item[name]]))


def test_prompts_in_csv_that_spreadsheets_would_run_begin_with_an_apostrophe():
    texts = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "a = b", "", None]
    rows = pd.DataFrame({"text": pd.Categorical(texts), "token": ["=x", *["plain"] * 8], "score": [-1.5] * 9})
    answer = _csv_answer(rows, {})
    read = pd.read_csv(io.BytesIO(answer.body), dtype={"text": str}, keep_default_na=False)
    assert read["text"].tolist() == ["'=1+1", "'+1", "'-1", "'@SUM(A1)", "'\t=1", "'\r=1", "a = b", "", ""]
    assert read["token"].tolist() == ["=x", *["plain"] * 8], "a token is no prompt"
    assert (read["score"] == -1.5).all()


def test_a_response_over_several_groups_has_one_etag(client, library):
    path = f"{RUN}/curves?statistic=auroc&statistic=norm_mean"
    etag = client.get(path).headers["etag"]
    assert etag.strip('"') not in digests(library).values()
    assert get_with_etag(client, path, etag).status_code == 304


@pytest.mark.parametrize("path", ["/v1/runs", RUN, f"{RUN}/sections/gram", f"{RUN}/figures/gram.shape"])
def test_every_response_has_an_etag(client, path):
    etag = client.get(path).headers["etag"]
    assert get_with_etag(client, path, etag).status_code == 304


def test_long_responses_are_compressed_and_short_ones_are_not(client):
    answer = client.get(f"{RUN}/curves", headers={"Accept-Encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert "Accept-Encoding" in answer.headers["vary"]
    plain = client.get(f"{RUN}/curves", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert answer.json() == plain.json()
    assert "content-encoding" not in client.get("/healthz", headers={"Accept-Encoding": "gzip"}).headers
    etag = answer.headers["etag"]
    assert get_with_etag(client, f"{RUN}/curves", etag, **{"Accept-Encoding": "gzip"}).status_code == 304


def test_static_files_are_served_compressed_or_plain(client):
    packed = client.get("/static/plotly.min.js", headers={"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    plain = client.get("/static/plotly.min.js", headers={"Accept-Encoding": "identity"})
    assert gzip.decompress(gzip.compress(plain.content)) == packed.content
    assert get_with_etag(client, "/static/plotly.min.js", packed.headers["etag"]).status_code == 304


def recomputed(folder):
    """Recompute `separation`, `curves` and `directions` for one more contrast, but not `travel`."""
    run = open_run(str(folder), "tiny-0")
    more = {**CONTRASTS, "more": {"positive": "nouns", "negative": "harmful", "paired": False}}
    analyse(run, more, None, lambda *_: None, {"separation", "travel"})


def test_a_recomputed_group_has_a_new_etag_and_new_numbers(library, tmp_path):
    client = client_of(copied(library, tmp_path, "tiny-0", with_activations=True))
    paths = {"curves": f"{RUN}/curves?statistic=cosine_of_means", "travel": f"{RUN}/tables/travel"}
    before = {name: client.get(path) for name, path in paths.items()}
    recomputed(tmp_path)
    after = {
        name: client.get(path, headers={"If-None-Match": before[name].headers["etag"]}) for name, path in paths.items()
    }
    assert after["travel"].status_code == 304
    assert after["curves"].status_code == 200
    assert {item["contrast"] for item in after["curves"].json()["items"]} == {"refusal", "subject", "more"}
    assert client.get("/v1/runs").json()["items"][0]["contrasts"] == ["refusal", "subject", "more"]


def test_the_etag_of_a_table_depends_on_its_content(client):
    one, other = (client.get(f"/v1/runs/{run_id}/tables/growth") for run_id in ("tiny-0", "tiny-1"))
    assert one.json()["items"] != other.json()["items"]
    assert one.headers["etag"] != other.headers["etag"]


def test_an_unchanged_whole_table_returns_304(client):
    first = client.get(f"{RUN}/tables/curves", headers={"Accept": PARQUET})
    assert get_with_etag(client, f"{RUN}/tables/curves", first.headers["etag"], Accept=PARQUET).status_code == 304


def test_a_whole_table_has_the_headers_vary_and_cache_control(client):
    answer = client.get(f"{RUN}/tables/curves", headers={"Accept": PARQUET})
    assert "Accept" in answer.headers["vary"]
    assert "private" in answer.headers["cache-control"]


def test_fastparquet_reads_stored_tables(client):
    file = io.BytesIO(client.get(f"{RUN}/tables/curves", headers={"Accept": PARQUET}).content)
    assert fastparquet.ParquetFile(file).count() == client.get(f"{RUN}/tables/curves?limit=1").json()["total"]


@pytest.mark.parametrize(
    ("path", "computed"),
    [
        (f"{RUN}/curves?statistic=auroc", "api.runs.select_curves"),
        (COMPARED, "api.compare.comparison"),
    ],
)
def test_an_unchanged_response_is_not_computed(client, monkeypatch, path, computed):
    etag = client.get(path).headers["etag"]
    monkeypatch.setattr(f"theodolite.{computed}", None)
    assert get_with_etag(client, path, etag).status_code == 304


def test_a_selection_of_a_table_is_the_same_in_every_form(client, library, monkeypatch):
    monkeypatch.setattr("theodolite.api.encoding._CSV_ROWS", 3)  # so that CSV comes in pieces
    table = parquet_of(Path(library, "runs/tiny-0/tables/growth.parquet").read_bytes())
    name = "intercept"
    query = {"where": [f"{name}>=0"], "order": f"-{name}"}
    wanted = table[table[name] >= 0].sort_values(name, ascending=False, kind="stable").reset_index(drop=True)
    path = f"{RUN}/tables/growth"
    rows = client.get(path, params={**query, "limit": 10_000}).json()["items"]
    assert len(rows) == len(wanted) > 3
    same(wanted, pd.DataFrame(rows))
    for form, read in ((PARQUET, parquet_of), (ARROW, arrow_of), (CSV, lambda text: pd.read_csv(io.BytesIO(text)))):
        answer = client.get(path, params=query, headers={"Accept": form})
        assert answer.status_code == 200, answer.text
        assert read(answer.content)[name].tolist() == wanted[name].tolist()


def test_a_missing_text_is_null_in_arrow():
    for texts in (["a", None], [None, None]):
        frame = pd.DataFrame({"text": pd.Series(texts, dtype="str")})
        column = pa.ipc.open_stream(_ENCODERS[ARROW]([frame])).read_all()["text"]
        assert (str(column.type), column.to_pylist()) == ("string", texts)


@pytest.mark.parametrize("rows", [3, 250_000])
def test_the_types_of_a_file_do_not_depend_on_the_request(client, library, monkeypatch, rows):
    monkeypatch.setattr("theodolite.api.encoding._BINARY_ROWS", rows)
    path, content = f"{RUN}/tables/growth", Path(library, "runs/tiny-0/tables/growth.parquet").read_bytes()
    stored = fastparquet.ParquetFile(io.BytesIO(content))
    selections = [{"limit": 5}, {"where": "n>0"}, {"where": "n>0", "limit": 5}, {"where": "n<0"}, {"order": "-n"}]
    for params in selections:
        parquet, arrow = (
            client.get(path, params=params, headers={"Accept": form}).content for form in (PARQUET, ARROW)
        )
        assert fastparquet.ParquetFile(io.BytesIO(parquet)).dtypes == stored.dtypes
        types = {field.name: str(field.type) for field in pa.ipc.open_stream(arrow).schema}
        assert types["n"] == "int64"
        assert types["origin_at_limit"] == "bool"
        assert types["quantity"] == types["verdict"] == "string"
        same(parquet_of(parquet), arrow_of(arrow))


def test_a_large_table_as_csv_has_one_header(client, monkeypatch):
    whole = client.get(f"{RUN}/tables/growth", headers={"Accept": CSV}).text
    monkeypatch.setattr("theodolite.api.encoding._CSV_ROWS", 2)
    answer = client.get(f"{RUN}/tables/growth", headers={"Accept": CSV})
    assert (answer.text, "content-length" in answer.headers) == (whole, False)


def test_commit_records_of_a_complete_run_are_cached(client, library, monkeypatch):
    first = client.get(RUN).json()
    monkeypatch.setattr("theodolite.query.runs.read_commits", None)
    assert client.get(RUN).json() == first


def test_responses_are_cached_by_query_and_media_type(library, monkeypatch):
    client = client_of(library)
    selections = [(form, site) for form in (JSON, PARQUET) for site in ("resid_pre", "resid_mid")]

    def answers():
        return [client.get(f"{RUN}/curves?site={site}", headers={"Accept": form}).content for form, site in selections]

    first = answers()
    assert len(set(first)) == 4
    monkeypatch.setattr("theodolite.api.runs.select_curves", None)
    assert answers() == first


def test_the_cache_of_responses_is_bounded(library):
    client = client_of(library, results_cache_bytes=50_000)
    cache = client.app.state.cache
    for number in range(80):
        assert client.get(f"{RUN}/curves?limit={number + 1}{'&limit=1' * 700}").status_code == 200
    assert cache.used_bytes <= 50_000
    assert sum(len(str(key)) for key in cache._entries) < 50_000


def test_a_cached_response_is_not_returned_for_a_similar_url(client):
    right = f"{RUN}/directions/refusal?site=resid_pre&layer=1"
    assert client.get(right).status_code == 200
    assert client.get(right.replace("refusal", "refu%0Asal")).status_code == 422


def test_an_unknown_statistic_returns_422_for_every_media_type(client):
    for form in (JSON, PARQUET):
        answer = client.get(f"{RUN}/curves?statistic=auroq", headers={"Accept": form})
        assert_problem(answer, 422, "auroq", "auroc")


def test_a_replaced_run_record_is_read_again(library, tmp_path):
    store = copied(library, tmp_path, "tiny-0")
    client = client_of(store)
    first = client.get(RUN).json()
    reseal(tmp_path / "runs/tiny-0/run.json", created="2030-01-01T00:00:00Z")
    assert first["created"][:4] != "2030"
    assert client.get(RUN).json()["created"][:4] == "2030"
