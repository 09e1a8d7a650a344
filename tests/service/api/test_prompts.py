"""The prompts of a run over HTTP, and the setting that hides their texts."""

from support.each import each
from support.serving import assert_problem, client_of

from theodolite.query.prompts import read_contrast_prompts, read_scored_prompts
from theodolite.store.runs import open_run
from theodolite.store.tables import decode_table

BOTH = "/v1/runs/tiny-0/prompts"
PATH = f"{BOTH}/harmful"
SCORES = "/v1/runs/tiny-0/scores"


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


def test_prompts_of_both_sets_are_selected_by_their_scores(client, library):
    at = {"contrast": "subject", "site": "resid_pre", "layer": 1}
    expected = read_contrast_prompts(open_run(library, "tiny-0"), **at, order="margin", low=-2, high=2).rows
    page = client.get(BOTH, params={**at, "order": "margin", "low": -2, "high": 2}).json()
    assert page["items"] == expected.to_dict("records")
    assert {item["set"] for item in page["items"]} == {"nouns", "harmless"}
    assert page["total"] == len(expected) < 15
    alone = client.get(f"{BOTH}/nouns", params={"low": -2, "high": 2, **at, "order": "margin"}).json()
    assert [item["sample"] for item in alone["items"]] == expected[expected["set"] == "nouns"]["sample"].tolist()


def test_the_scores_of_both_sets_are_counted_and_drawn(client, library):
    at = {"contrast": "subject", "site": "resid_mid", "layer": 2}
    rows = read_contrast_prompts(open_run(library, "tiny-0"), **at).rows
    content = client.get(SCORES, params=at).json()
    assert content["place"] == {**at, "position": -1}
    drawn = {trace["meta"]["set"]: trace for trace in content["figure"]["data"]}
    for name, sign in (("nouns", 1), ("harmless", -1)):
        own = rows[rows["set"] == name]
        assert (drawn[name]["x"], drawn[name]["customdata"]) == (own["score"].tolist(), own["sample"].tolist())
        assert min(sign * height for height in drawn[name]["y"]) == 1
    wrong = (rows["margin"] < 0).groupby(rows["set"]).sum()
    assert f"{wrong['nouns']} of 6 prompts of nouns and {wrong['harmless']} of 9 of harmless" in content["sentence"]
    assert "layer 2 mid" in content["sentence"]
    assert len(content["sentence"].split()) <= 25


def test_a_prompt_has_its_scores_by_depth_and_a_figure(client):
    content = client.get(f"{PATH}/3").json()
    assert [row["depth"] for row in content["items"]] == list(range(8))
    assert (content["sample"], content["contrast"], content["position"]) == (3, "refusal", -1)
    curves = [trace for trace in content["figure"]["data"] if trace["name"].startswith("this prompt")]
    assert [trace["name"] for trace in curves] == ["this prompt"]
    assert curves[0]["y"] == [row["score"] for row in content["items"]]


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
    assert {item["text"] for item in hiding.get(BOTH).json()["items"]} == {None}
    assert_problem(hiding.get(PATH, params={"containing": "a"}), 422, "THEODOLITE_PROMPTS_SHOWN")


@each(
    "path, status, part",
    [
        ("/v1/runs/tiny-0/prompts/none", 422, "it has harmful, harmless, nouns"),
        (f"{PATH}?order=text", 422, "order"),
        (f"{PATH}?layer=7", 422, "it has 0 to 3"),
        (f"{PATH}?low=nan", 422, "low"),
        (f"{BOTH}?contrast=other", 422, "it has refusal, subject"),
        (f"{BOTH}?set=harmful", 422, "there is no such parameter"),
        (f"{SCORES}?contrast=other", 422, "it has refusal, subject"),
        (f"{PATH}/10", 422, "it has 0 to 9"),
        (f"{PATH}/x", 422, "sample"),
        ("/v1/runs/captured-0/prompts/harmful", 409, "not complete"),
    ],
)
def test_a_wrong_request_says_what_is_allowed(client, path, status, part):
    assert_problem(client.get(path), status, part)
