"""Check the list of runs, incomplete runs, and the errors for unknown runs."""

import shutil

from support.each import each
from support.serving import assert_problem, captured_run, client_of, copied, pages_of

from theodolite.query.runs import summaries


def test_complete_runs_are_listed_with_sets_contrasts_and_results(client):
    answer = client.get("/v1/runs").json()
    assert answer["next"] is None
    listed = {item["run_id"]: item for item in answer["items"]}
    assert set(listed) == {"tiny-0", "tiny-1"}
    assert listed["tiny-0"]["sets"] == {"harmful": 10, "harmless": 9, "nouns": 6}
    assert listed["tiny-0"]["contrasts"] == ["refusal", "subject"]
    assert listed["tiny-1"]["contrasts"] == ["refusal"]
    assert listed["tiny-0"]["analyses"] == ["curves", "directions", "gram", "moments", "separation", "travel"]
    assert {item["state"] for item in answer["items"]} == {"complete"}


@each(
    "params, expected",
    [
        ({"incomplete": True}, {"tiny-0", "tiny-1", "captured-0"}),
        ({"model": "TIN"}, {"tiny-0", "tiny-1"}),
        ({"model": "llama-of-nobody"}, set()),
        ({"contrast": "subject"}, {"tiny-0"}),
        ({"contrast": "subject", "incomplete": True}, {"tiny-0", "captured-0"}),
        ({"contrast": "nobody"}, set()),
    ],
)
def test_runs_are_filtered_by_model_and_contrast(client, params, expected):
    assert {item["run_id"] for item in client.get("/v1/runs", params=params).json()["items"]} == expected


def test_the_listing_equals_the_summaries_of_the_query_package(client, library):
    listed = client.get("/v1/runs", params={"incomplete": True}).json()["items"]
    assert listed == summaries(library)


def test_pages_contain_each_run_once(client):
    pages = pages_of(client, "/v1/runs", incomplete=True, limit=1)
    assert sorted(page[0]["run_id"] for page in pages) == ["captured-0", "tiny-0", "tiny-1"]


def test_a_new_run_is_listed_without_a_restart(tmp_path):
    client = client_of(tmp_path)
    assert client.get("/v1/runs").json()["items"] == []
    answer = client.get("/v1/runs/tiny-9")
    assert_problem(answer, 404, "tiny-9", "/v1/runs lists")
    assert str(tmp_path) not in answer.text
    captured_run(tmp_path, "tiny-9")
    assert [one["run_id"] for one in client.get("/v1/runs?incomplete=true").json()["items"]] == ["tiny-9"]
    assert client.get("/v1/runs/tiny-9").json()["state"] == "captured"


@each(
    "path",
    [
        "curves",
        "directions/refusal?site=resid_pre&layer=0",
        "heads/0/0",
        "curves?statistic=mean_cosine",
        "tables/curves",
        "sections",
        "sections/curves",
        "figures/gram.shape",
    ],
)
def test_an_incomplete_run_returns_409_and_an_unknown_run_404(client, path):
    assert_problem(client.get(f"/v1/runs/captured-0/{path}"), 409, "captured-0 is not complete: its state is captured")
    assert_problem(client.get(f"/v1/runs/nobody-0/{path}"), 404, "nobody-0", "/v1/runs lists")


def test_an_incomplete_run_is_described(client):
    description = client.get("/v1/runs/captured-0").json()
    assert (description["state"], description["analyses"], description["results"]) == ("captured", [], {})
    assert description["sets"]["harmful"]["shards_committed"] == 3


@each("runs", [["captured-0"], ["tiny-0", "captured-0"]])
def test_incomplete_runs_are_not_compared(client, runs):
    assert_problem(client.get("/v1/compare", params={"run": runs, "contrast": "refusal"}), 409, "captured-0")
    assert_problem(client.get("/v1/compare", params={"run": ["tiny-0", "nobody-0"]}), 404, "nobody-0")


def test_a_removed_run_returns_404(library, tmp_path):
    client = client_of(copied(library, tmp_path, "tiny-0", "tiny-1"))
    assert client.get("/v1/runs/tiny-0").status_code == 200
    shutil.rmtree(tmp_path / "runs" / "tiny-0")
    assert [item["run_id"] for item in client.get("/v1/runs").json()["items"]] == ["tiny-1"]
    assert_problem(client.get("/v1/runs/tiny-0"), 404, "/v1/runs lists")


def test_a_folder_without_a_record_is_not_a_run(library, tmp_path):
    client = client_of(copied(library, tmp_path, "tiny-0"))
    (tmp_path / "runs" / "begun-0" / "prompts").mkdir(parents=True)
    (tmp_path / "runs" / "begun-0" / "prompts" / "a.parquet").write_bytes(b"x")
    assert [item["run_id"] for item in client.get("/v1/runs?incomplete=true").json()["items"]] == ["tiny-0"]
    assert_problem(client.get("/v1/runs/begun-0"), 404)
