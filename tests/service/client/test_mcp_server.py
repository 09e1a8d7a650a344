"""What agents get through the Model Context Protocol: the reader's numbers, with what limits them, and no texts."""

import asyncio
import json
import os
import sys

import numpy as np
import pandas as pd
import pytest
from mcp import Client, StdioServerParameters
from support.finished_runs import finished_run

import theodolite
from theodolite.mcp_server import create_server
from theodolite.run_reader import RunReader

RUN = {"run": "tiny-0"}
CALLS = [
    ("runs", {}),
    ("overview", RUN),
    ("overview", {**RUN, "contrast": "subject", "site": "resid_pre", "layer": 2}),
    ("curves", {**RUN, "site": "resid_mid", "position": -1}),
    ("curves", {**RUN, "statistic": "variance_mean", "set": "nouns"}),
    ("prompts", {**RUN, "set": "harmful", "count": 3}),
    ("prompts", {**RUN, "set": "nouns", "order": "sample"}),
    ("compare", {"runs": ["tiny-0", "heads-0"], "statistic": "auroc", "contrast": "subject"}),
    ("overview", {"run": "nobody"}),
    ("curves", {**RUN, "statistic": "nothing"}),
    ("prompts", {**RUN, "set": "nothing"}),
    ("direction_tokens", RUN),
    ("compare", {"runs": ["captured-0"]}),
]


def answers(server, calls):
    """Return the tools of a server by name, and for each call its text and whether it is an error."""

    async def ask():
        async with Client(server) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            found = [await client.call_tool(name, arguments) for name, arguments in calls]
            return tools, [(one.content[0].text, bool(one.is_error)) for one in found]

    return asyncio.run(ask())


def test_tools_answer_with_the_numbers_of_the_reader_and_their_limits(shelf, service):
    tools, found = answers(create_server(shelf), CALLS)
    assert all(tool.annotations.read_only_hint and tool.description for tool in tools.values())
    assert {name for name, _ in CALLS} == set(tools)
    texts = [text for text, _ in found]
    runs, first, second, curves, variances, prompts, nouns, compared = (json.loads(text) for text in texts[:8])
    assert [run["run_id"] for run in runs["runs"]] == theodolite.runs(shelf)["run_id"].tolist()

    run = theodolite.open_run(shelf, "tiny-0")
    overview = run.overview()
    glyph = overview.tiles[0].glyph
    assert first["questions"][0]["value"] == pytest.approx(glyph.value, rel=1e-4)
    assert first["questions"][0]["low"] == pytest.approx(glyph.low, rel=1e-4)
    assert {"⚠ no twin", "10 + 9 prompts"} <= {*first["badges"], first["badges"][0].removeprefix("⚠ ")}
    assert set(first["badges_mean"]) <= set(first["badges"])
    assert (second["contrast"], second["site"], second["layer"]) == ("subject", "resid_pre", 2)
    measured = run.group("directions", "reliability", contrast="subject", site="resid_pre", position=-1)
    reliability = float(measured["reliability"].sel(layer=2))
    assert second["reliability"] == pytest.approx(reliability, rel=1e-4)
    assert ("⚠ unreliable direction" in second["badges"]) == (reliability < 0.5)

    (curve,) = curves["curves"]
    expected = run.curves("auroc", contrast=curve["contrast"], site="resid_mid", position=-1)
    for name in ("value", "low", "high", "band_low", "band_high"):
        np.testing.assert_allclose(curve[name], expected[name], rtol=1e-4)
    assert len(curve["reliability"]) == 4
    assert "⚠ no twin" in curves["badges"]
    assert {one["site"] for one in variances["curves"]} == {"resid_pre"}
    assert {one["set"] for one in variances["curves"]} == {"nouns"}

    table = run.prompts("harmful", order="margin")
    assert [item["sample"] for item in prompts["items"]] == table["sample"].tolist()[:3]
    assert prompts["wrong"] == (table["margin"] < 0).sum()
    assert "⚠ no twin" in prompts["badges"]
    assert not any("text" in item for item in [*prompts["items"], *nouns["items"]])
    assert not any(text in answer for text in table["text"] for answer in texts)
    assert {one["run"] for one in compared["curves"]} == set(compared["badges"]) == {"tiny-0", "heads-0"}

    refused = [text.partition(": ")[2] for text, is_error in found if is_error]
    assert len(refused) == len(CALLS) - 8
    assert all(len(text) < 700 and "\n" not in text for text in refused)
    assert [text.split(":")[0] for text in refused[1:3]] == ["statistic", "set"]

    of_service = answers(create_server(service), CALLS)[1]
    assert [one for one, (_, is_error) in zip(of_service, found, strict=True) if not is_error] == found[:8]
    assert [is_error for _, is_error in of_service] == [is_error for _, is_error in found]
    allowed = answers(create_server(shelf, allow_texts=True), [CALLS[5]])[1]
    assert [item["text"] for item in json.loads(allowed[0][0])["items"]] == table["text"].tolist()[:3]


def test_the_tokens_of_a_direction_come_with_their_limit(tmp_path, monkeypatch):
    groups = {
        "curves": {},
        "directions": {"reliability": 0.25},
        "separation": {"auroc": np.array([0.5, 0.6, 0.9, 0.7])[:, None], "n_used": [20, 21]},
        "logit_lens": {},
    }
    finished_run(tmp_path, groups, attributes={"limit": 5.0})
    table = pd.DataFrame(
        {"contrast": "refusal", "position": position, "site": "resid_pre", "layer": layer, "end": end}
        | {"place": place, "token": f"{end}{layer}{position}{place}", "change": 1 / 3, "z": np.nan}
        for position in (-2, -1)
        for layer in (1, 2)
        for end in ("raised", "lowered")
        for place in (1, 0)
    )
    monkeypatch.setattr(RunReader, "table", lambda _, name: table if name == "direction_tokens" else None)
    monkeypatch.setattr("theodolite.overview.facts.read_direction_tokens", lambda *_: table.iloc[:0])
    asked = ("direction_tokens", {**RUN, "count": 1, "site": "resid_pre"})
    ((text, _),) = answers(create_server(str(tmp_path)), [asked])[1]
    found = json.loads(text)
    assert found["raised"] == [{"token": "raised2-10", "change": 0.33333, "z": None}]
    assert found["lowered"][0]["token"] == "lowered2-10"
    assert found["chance_limit"] == 5.0
    assert found["reliability"] == 0.25
    assert "⚠ unreliable direction" in found["badges"]


def test_the_command_serves_over_standard_input_and_output(shelf):
    words = ["-m", "theodolite_jobs.cli", "mcp", "--store", shelf]
    paths = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    command = StdioServerParameters(command=sys.executable, args=words, env=paths)
    _, found = answers(command, CALLS[:2])
    assert found == answers(create_server(shelf), CALLS[:2])[1]
