"""The overview of a contrast over HTTP."""

from support.each import each
from support.finished_runs import finished_run
from support.serving import assert_problem, client_of

from theodolite.overview.facts import read_overview
from theodolite.overview.view import overview_html
from theodolite.query.prompts import read_scored_prompts
from theodolite.store.runs import open_run

OVERVIEW = "/v1/runs/tiny-0/overview"


def test_the_answer_is_the_overview_of_the_store(client, library):
    run = open_run(library, "tiny-0")
    answer = client.get(OVERVIEW).json()
    first = read_overview(run)
    assert (answer["contrast"], answer["contrasts"]) == ("refusal", ["refusal", "subject"])
    assert (answer["site"], answer["layer"]) == (first.place.site, first.place.layer)
    assert (answer["sentence"], answer["html"]) == (first.sentence, overview_html(run, first))
    assert [tile["answer"] for tile in answer["tiles"]] == [tile.answer for tile in first.tiles]
    assert answer["badges"] == [vars(badge) for badge in first.badges]
    chosen = client.get(OVERVIEW, params={"contrast": "subject", "site": "resid_mid", "layer": 1}).json()
    assert (chosen["contrast"], chosen["site"], chosen["layer"]) == ("subject", "resid_mid", 1)
    assert chosen["html"] == overview_html(run, read_overview(run, "subject", "resid_mid", 1))


def test_a_service_that_withholds_texts_has_none_in_the_overview(client, library):
    run = open_run(library, "tiny-0")
    texts = [text for name in ("harmful", "harmless") for text in read_scored_prompts(run, name).rows["text"]]
    hiding = client_of(library, prompts_shown=False)
    at = {"site": "resid_mid", "layer": 2}  # where prompts are misplaced
    shown, hidden = client.get(OVERVIEW, params=at), hiding.get(OVERVIEW, params=at)
    assert any(f": {text}" in shown.json()["html"] for text in texts)
    assert not any(text in hidden.text for text in texts)
    assert shown.headers["etag"] != hidden.headers["etag"]
    assert hiding.get(OVERVIEW, params=at, headers={"If-None-Match": hidden.headers["etag"]}).status_code == 304


@each(
    "query, message",
    [
        ("contrast=nobody", "no 'nobody' with separation; it has refusal, subject"),
        ("site=resid_pre&layer=4", "no resid_pre of layer 4"),
        ("site=resid_post&layer=1", "no resid_post of layer 1"),
        ("layer=x", "layer"),
        ("layer=-1", "layer"),
    ],
)
def test_an_unknown_contrast_or_depth_is_refused(client, query, message):
    assert_problem(client.get(f"{OVERVIEW}?{query}"), 422, message)


def test_runs_without_separation_and_without_results_have_no_overview(client, tmp_path):
    finished_run(tmp_path, {"curves": {}})
    assert_problem(client_of(tmp_path).get(OVERVIEW), 404, "separation")
    assert_problem(client.get("/v1/runs/captured-0/overview"), 409)
