"""The prompts of a run over HTTP, and the setting that hides their texts."""

import base64

import numpy as np
from support.each import each
from support.serving import assert_problem, client_of

from theodolite.query.prompts import read_scored_prompts
from theodolite.store.runs import open_run
from theodolite.store.tables import decode_table

PATH = "/v1/runs/tiny-0/prompts/harmful"


def test_pages_together_have_all_prompts_in_order(client, library):
    expected = read_scored_prompts(open_run(library, "tiny-0"), "harmful", order="margin").rows
    found, cursor = [], None
    while True:
        page = client.get(PATH, params={"order": "margin", "limit": 4, **({"cursor": cursor} if cursor else {})}).json()
        assert (page["total"], page["n_scored"], page["n_wrong"]) == (10, 10, int((expected["margin"] < 0).sum()))
        found += page["items"]
        cursor = page["next"]
        if cursor is None:
            break
    assert found == expected.to_dict("records")


def test_a_prompt_has_its_scores_by_depth_and_a_figure(client):
    content = client.get(f"{PATH}/3").json()
    assert [row["depth"] for row in content["items"]] == list(range(8))
    assert (content["sample"], content["contrast"], content["position"]) == (3, "refusal", -1)
    curves = [trace for trace in content["figure"]["data"] if trace["name"].startswith("this prompt")]
    assert [trace["name"] for trace in curves] == ["this prompt, pre", "this prompt, mid"]
    assert [list(np.frombuffer(base64.b64decode(trace["y"]["bdata"]))) for trace in curves] == [
        [row["score"] for row in content["items"] if row["site"] == site] for site in ("resid_pre", "resid_mid")
    ]


def test_prompts_can_be_read_as_parquet(client):
    response = client.get(PATH, headers={"Accept": "application/vnd.apache.parquet"})
    frame = decode_table(response.content, "prompts")
    assert frame["sample"].tolist() == list(range(10))


def test_a_service_that_hides_prompts_sends_scores_and_no_text(library, client):
    hiding = client_of(library, prompts_shown=False)
    shown, hidden = (one.get(PATH).json()["items"] for one in (client, hiding))
    assert all(item["text"] for item in shown)
    assert hidden == [{**item, "text": None} for item in shown]
    assert hiding.get(f"{PATH}/1").json()["text"] is None
    assert_problem(hiding.get(PATH, params={"containing": "a"}), 422, "THEODOLITE_PROMPTS_SHOWN")


@each(
    "path, status, part",
    [
        ("/v1/runs/tiny-0/prompts/none", 422, "it has harmful, harmless, nouns"),
        (f"{PATH}?order=text", 422, "order"),
        (f"{PATH}?layer=7", 422, "it has 0 to 3"),
        (f"{PATH}/10", 422, "it has 0 to 9"),
        (f"{PATH}/x", 422, "sample"),
        ("/v1/runs/captured-0/prompts/harmful", 409, "not complete"),
    ],
)
def test_a_wrong_request_says_what_is_allowed(client, path, status, part):
    assert_problem(client.get(path), status, part)
