"""The form of a new survey in a real browser: its fields and its text show the same spec."""

import gzip
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, expect
from support.browsing import leave, settle
from support.listening import served
from support.nightly import at_night

from theodolite.groups import ANALYSES
from theodolite.model_aliases import MODEL_ALIASES
from theodolite.spec_file import parse_text
from theodolite.spec_parts import BUILTIN_SETS, FILE_TYPES, PromptSetSpec
from theodolite_jobs.prompts.sources import read_prompts

pytestmark = pytest.mark.browser

ID = "0123456789abcdef" * 4
RICH = {
    "model": {"id": "smollm2-135m-instruct", "dtype": "float32"},
    "prompts": {
        "bad": {"source": "builtin:harmful", "limit": 8, "skip": 2},
        "two-lines": {"source": "inline", "texts": ["One\nprompt", "Another"], "template": "none"},
    },
    "contrasts": {"refusal": {"positive": "bad", "negative": "two-lines"}},
    "words": {"nouns": "bad", "tokens": 7},
    "analyses": ["curves"],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[str]:
    """The address of a service over an empty store, without a cluster."""
    folder = tmp_path_factory.mktemp("form")
    (folder / "runs").mkdir()
    with served(folder) as address:
        yield address


@pytest.fixture
def form(page, noise, place) -> Iterator[Page]:
    page.goto(f"{place}/#/new")
    settle(page)
    yield page
    leave(page)
    # The browser logs each refused check.
    assert [said for said in noise if not said.startswith("Failed to load resource")] == []
    noise.clear()


COPIED = "navigator.clipboard.writeText = async (text) => { window.copied = text; }"


def with_cluster(page: Page) -> None:
    """Accept all specs from now on, as a service with a cluster does."""
    checked = {"valid": True, "id": ID, "has_cluster": True, "spec": {}}
    page.route("**/v1/spec/check", lambda route: route.fulfill(json=checked))


def written(page: Page) -> dict[str, Any]:
    """Return the spec in the text, as the command line reads it from a file."""
    return parse_text(page.locator("#spec-text").input_value())


def write(page: Page, spec: Any) -> None:
    page.locator("#spec-text").fill(spec if isinstance(spec, str) else json.dumps(spec))
    settle(page)


def prompt_set(page: Page, name: str) -> Locator:
    return page.get_by_role("group", name=f"Prompt set {name}", exact=True)


def contrast(page: Page, name: str) -> Locator:
    return page.get_by_role("group", name=f"Contrast {name}", exact=True)


def answer(page: Page) -> Locator:
    """Return the result of the last check; waits until it is known."""
    settle(page)
    return page.locator("#spec-answer")


def test_each_field_changes_the_text(form):
    form.get_by_label("label").fill("mine")
    form.get_by_label("model").fill("all-minilm-l6-v2")
    bad = prompt_set(form, "harmful")
    bad.get_by_label("limit").fill("8")
    bad.get_by_label("name").fill("bad")
    bad.get_by_label("name").press("Tab")
    expect(prompt_set(form, "bad").get_by_label("source")).to_be_focused()
    contrast(form, "refusal").get_by_label("paired").select_option("default")
    for title in ("Separation", "Permutation tests"):
        form.get_by_label(title).uncheck()
    form.get_by_label("Heads").check()
    spec = written(form)
    assert spec == {
        "name": "mine",
        "model": {"id": "all-minilm-l6-v2"},
        "prompts": {"bad": {"source": "builtin:harmful", "limit": 8}, "harmless": {"source": "builtin:harmless"}},
        "contrasts": {"refusal": {"positive": "bad", "negative": "harmless"}},
        "analyses": ["curves", "heads"],
    }
    assert list(spec["prompts"]) == ["bad", "harmless"]
    for title in ("Curves", "Heads"):
        form.get_by_label(title).uncheck()
    assert "analyses" not in written(form)
    expect(answer(form)).to_contain_text("valid survey spec, but this service has no cluster")


def test_the_text_changes_the_fields_and_keeps_what_they_do_not_show(form):
    write(form, RICH)
    expect(prompt_set(form, "bad").get_by_label("limit")).to_have_value("8")
    expect(contrast(form, "refusal").get_by_label("negative")).to_have_value("two-lines")
    expect(contrast(form, "refusal").get_by_label("paired")).to_have_value("")
    expect(form.get_by_label("Curves")).to_be_checked()
    expect(form.get_by_label("Words")).not_to_be_checked()
    texts = prompt_set(form, "two-lines").get_by_label("some of them with line breaks")
    expect(texts).to_have_attribute("readonly", "")
    name = prompt_set(form, "bad").get_by_label("name")
    name.fill("worse")
    name.press("Enter")
    prompt_set(form, "worse").get_by_label("set", exact=True).select_option("nouns")
    renamed = json.loads(json.dumps(RICH).replace('"bad"', '"worse"').replace("builtin:harmful", "builtin:nouns"))
    assert written(form) == renamed
    assert form.url.endswith("#/new")  # Enter submits nothing
    write(form, '{"prompts": 3, "contrasts": [], "analyses": "x", "model": null}')
    expect(form.get_by_role("group", name="Prompt set")).to_have_count(0)
    write(form, '{"model": ')
    expect(answer(form)).to_contain_text("the text cannot be read as YAML or JSON")
    expect(form.get_by_label("model")).to_be_disabled()
    write(form, RICH)
    expect(form.get_by_label("model")).to_be_enabled()


def test_the_text_is_yaml_or_json_and_both_are_the_same_spec(form):
    write(form, RICH)
    text = form.locator("#spec-text")
    formats = form.get_by_label("format of the spec")
    formats.select_option("JSON")
    assert json.loads(text.input_value()) == RICH
    formats.select_option("YAML")
    assert text.input_value().startswith("model:\n  id: smollm2-135m-instruct\n  dtype: float32\n")
    assert yaml.safe_load(text.input_value()) == RICH
    write(form, "# mine\nmodel: {id: all-minilm-l6-v2}\nprompts: {a: {source: 'builtin:nouns', limit: 0o17}}\n")
    expect(prompt_set(form, "a").get_by_label("limit")).to_have_value("")  # a text in YAML 1.1
    write(form, "model: {id: all-minilm-l6-v2}\nprompts: {a: &b {source: 'builtin:nouns', limit: 9}, c: *b}\n")
    expect(prompt_set(form, "c").get_by_label("limit")).to_have_value("9")
    expect(answer(form)).to_contain_text("valid survey")
    write(form, "model: {id: x}\nmodel: {id: y}\n")
    expect(answer(form)).to_contain_text("line 2, column 1: model is given twice")
    form.reload()
    expect(text).to_have_value("model: {id: x}\nmodel: {id: y}\n")
    expect(form.get_by_label("label")).to_be_disabled()


def test_any_spec_is_written_as_yaml_that_the_command_line_reads(form):
    words = ["yes", "No", "null", "~", "", " ", "a ", "- a", "a: b", "a #b", "#", "'", '"', "\\", "1", "1e5", "0x1"]
    words += ["2026-01-01", "12:30", ".nan", "1_0", "@a", "%", "*a", "!a", "é", "😀", "a\nb\n", "\t"]
    words += ["\u2028", "\x85", "\ufeff", "a\x7f"]
    numbers = [0, -1, 1.5, 1e21, 1e-7, -2e-30, True, None]
    parts = [[], {}, [[]], [{}], [[1, [2]], {"a": [{"b": 1}]}], [{word: [word]} for word in words]]
    spec = {word: word for word in words} | {"words": words, "numbers": numbers, "parts": parts}
    write = "spec => import('/static/yaml-text.js').then(({ writeYaml }) => writeYaml(spec))"
    assert parse_text(form.evaluate(write, spec)) == spec


def test_a_long_spec_is_written_as_json_and_an_unreadable_text_is_kept(form):
    long = [f"Name the city number {number}, and say where it lies on the map." for number in range(2000)]
    write(form, {"model": {"id": "all-minilm-l6-v2"}, "prompts": {"mine": {"source": "inline", "texts": long}}})
    form.get_by_label("label").fill("long")
    expect(form.get_by_label("format of the spec")).to_have_value("JSON")
    expect(answer(form)).to_contain_text("valid survey")
    assert written(form)["prompts"]["mine"]["texts"] == long
    form.get_by_role("button", name="Start again").click()
    form.get_by_role("button", name="Add a prompt set").click()
    mine = prompt_set(form, "prompts")
    mine.get_by_label("source").select_option("uploaded file")
    answer(form)
    form.route("**/v1/uploads*", lambda route: (form.locator("#spec-text").fill("model: ["), route.continue_()))
    file = {"name": "goals.csv", "mimeType": "text/csv", "buffer": b"prompt\nName a city.\n"}
    mine.locator("input[type=file]").set_input_files(file)
    expect(mine).to_contain_text("goals.csv is not uploaded: The text of the spec cannot be read now")
    expect(form.locator("#spec-text")).to_have_value("model: [")


ESTIMATE = {
    "sets": {"a": {"prompts": 2000, "tokens": 90_000, "computed_tokens": 50_000}},
    "stored_bytes_at_most": 1_234_000_000,
    "replica_memory_bytes": 65_000_000_000,
    "parts_about": {
        "capture": {"seconds": {"one CPU core": 7300.0, "one H200 GPU": 9.0}, "bytes": 1_234_000_000},
        "gram": {"seconds": {"one CPU core": 610.0}, "bytes": 3_400},
        "total": {"seconds": {"one CPU core": 7910.0}, "bytes": 1_234_003_400},
    },
    "on_request_about": {"words": {"seconds": {"one CPU core": 45.0}, "bytes": 16_000_000}},
    "on_gpus_about": {
        "L40S": {"gpus_per_replica": None, "why": "the model does not fit"},
        "H100": {
            "gpus_per_replica": 2,
            "gpu_hours_per_million_prompts": 50,
            "dollars_per_million_prompts": 140,
        },
    },
    "tokens_counted_by": "the model's tokenizer",
    "warnings": ["the sets differ"],
}


def test_the_cost_is_estimated_and_a_change_removes_it(form):
    answers = [
        {"status": 202, "json": {"state": "running"}, "headers": {"Retry-After": "0"}},
        {"status": 200, "json": ESTIMATE},
        {"status": 422, "json": {"title": "Unprocessable Entity", "detail": "model.id: there is none"}},
    ]
    form.route("**/v1/spec/estimate", lambda route: route.fulfill(**answers.pop(0)))
    button = form.get_by_role("button", name="Estimate the cost")
    expect(button).to_be_hidden()  # this service has no cluster
    with_cluster(form)
    form.get_by_label("label").fill("a")
    button.click()
    costs = form.locator(".spec")
    expect(costs).to_contain_text("Estimated cost")
    for shown in ("90,000", "50,000", "at most 1.2 GB", "65 GB", "2 h", "the model does not fit", "the sets differ"):
        expect(costs).to_contain_text(shown)
    expect(costs.get_by_role("row", name="H100")).to_have_text("H10020.10.28")
    for name, shown in {
        "capture": "capture2 h1.2 GB9 s",
        "gram": "gram10 min3.4 kB",
        "total": "total2.2 h1.2 GB",
        "words": "words (not requested)45 s16 MB",
    }.items():
        expect(costs.get_by_role("row", name=name)).to_have_text(shown)
    form.get_by_label("label").fill("b")
    expect(costs).not_to_contain_text("Estimated cost")
    button.click()
    expect(costs).to_contain_text("The survey is not possible. model.id: there is none")


EXAMPLE = {
    "set": "mine",
    "is_harmful": False,
    "is_cut": False,
    "parts": [
        {"text": "<|im_start|>user\nName a saw.<|im_end|>\n<|im_start|>assistant", "is_measured": False},
        {"text": "\n", "is_measured": True},
    ],
}


def test_an_example_has_its_special_tokens_and_the_measured_one_is_marked(form):
    shown = {**ESTIMATE, "example": EXAMPLE}
    form.route("**/v1/spec/estimate", lambda route: route.fulfill(json=shown))
    with_cluster(form)
    form.get_by_label("label").fill("a")
    form.get_by_role("button", name="Estimate the cost").click()
    prompt = form.get_by_role("region", name="First prompt of mine")
    expect(prompt).to_contain_text("Name a saw.<|im_end|>")
    expect(prompt.locator("mark")).to_have_text("↵")
    shown["example"] = {**EXAMPLE, "set": "bad", "is_harmful": True}
    form.get_by_role("button", name="Estimate the cost").click()
    prompt = form.get_by_role("region", name="First prompt of bad")
    expect(form.get_by_role("heading", name="First prompt of bad")).to_be_visible()
    expect(prompt).to_be_hidden()
    form.get_by_text("Show the text, which is harmful").click()
    expect(prompt).to_contain_text("<|im_end|>")
    found = Axe().run(form)
    assert found.violations_count == 0, found.generate_report()


def test_each_contrast_says_how_precisely_its_auroc_will_be_known(form):
    expect(contrast(form, "refusal")).to_contain_text(
        "256 + 256 prompts: an AUROC near 0.8 will be known to about ± 0.04"
    )
    prompt_set(form, "harmful").get_by_label("limit").fill("20")
    expect(contrast(form, "refusal")).to_contain_text("20 + 256 prompts")
    write(form, {**RICH, "capture": {"keep": 4}})
    expect(contrast(form, "refusal")).to_contain_text("4 + 2 prompts")
    write(form, {**RICH, "prompts": {**RICH["prompts"], "bad": {"source": "hub:OWNER/NAME", "limit": 50}}})
    expect(contrast(form, "refusal")).not_to_contain_text("AUROC")  # the dataset may have fewer
    with_cluster(form)
    form.get_by_label("label").fill("a")
    counted = {**ESTIMATE, "sets": {"bad": {**ESTIMATE["sets"]["a"], "prompts": 40}}}
    form.route("**/v1/spec/estimate", lambda route: route.fulfill(json=counted))
    form.get_by_role("button", name="Estimate the cost").click()
    expect(form.locator(".spec")).to_contain_text("refusal: 40 + 2 prompts")


def test_the_width_is_that_of_hanley_and_mcneil_and_built_in_sets_are_counted(form):
    read = "import('/static/precision.js').then(({ halfWidth }) => halfWidth(51, 58, 0.893))"
    assert form.evaluate(read) / 1.96 == pytest.approx(0.0325, abs=5e-5)  # their example: 0.032
    spec = "{ prompts: { a: { source: `builtin:${name}` } } }"
    count = f"name => import('/static/precision.js').then(({{ countOf }}) => countOf({spec}, 'a'))"
    for name in BUILTIN_SETS:
        source = PromptSetSpec(source=f"builtin:{name}")
        assert form.evaluate(count, name) == len(read_prompts(name, source, Path()))


def test_prompts_are_typed_and_a_changed_source_comes_back(form):
    form.get_by_role("button", name="Add a prompt set").click()
    form.keyboard.type("mine")  # the name is selected
    form.keyboard.press("Tab")
    texts = prompt_set(form, "mine").get_by_label("one in each line")
    texts.press_sequentially("Name a city.\n\nName a river.")
    expect(texts).to_have_value("Name a city.\n\nName a river.")
    inline = {"source": "inline", "texts": ["Name a city.", "Name a river."]}
    assert written(form)["prompts"]["mine"] == inline
    expect(answer(form)).to_contain_text("valid survey")
    source = prompt_set(form, "mine").get_by_label("source")
    source.select_option("hub dataset")
    prompt_set(form, "mine").get_by_label("dataset").fill("OWNER/NAME")
    prompt_set(form, "mine").get_by_label("column").fill("goal")
    assert written(form)["prompts"]["mine"] == {"source": "hub:OWNER/NAME", "column": "goal"}
    expect(answer(form)).to_contain_text("this deployment does not read the dataset 'OWNER/NAME'; allowed: none")
    expect(source).to_have_attribute("aria-invalid", "true")
    source.select_option("typed here")
    assert written(form)["prompts"]["mine"] == inline
    prompt_set(form, "mine").get_by_role("button", name="Remove prompt set mine").click()
    expect(form.get_by_role("button", name="Add a prompt set")).to_be_focused()
    assert list(written(form)["prompts"]) == ["harmful", "harmless"]


def test_a_file_is_uploaded(form):
    form.get_by_role("button", name="Add a prompt set").click()
    mine = prompt_set(form, "prompts")
    mine.get_by_label("source").select_option("uploaded file")
    expect(answer(form)).to_contain_text("prompts.prompts.source: given 'upload:'; allowed: builtin:NAME")
    chosen = mine.locator("input[type=file]")
    accepted = [*(kind for kind in FILE_TYPES if not kind.endswith(".gz")), "gz"]
    assert chosen.get_attribute("accept") == ",".join(f".{kind}" for kind in accepted)
    chosen.set_input_files({"name": "goals.doc", "mimeType": "text/plain", "buffer": b"x"})
    expect(mine).to_contain_text("goals.doc is not uploaded: type")
    chosen.set_input_files({"name": "goals.csv", "mimeType": "text/csv", "buffer": b"goal,label\nName a city.,1\n"})
    expect(mine).to_contain_text("goals.csv, 26 bytes")
    expect(mine).not_to_contain_text("not uploaded")
    mine.get_by_label("column").fill("goal")
    packed = gzip.compress(b"goal\tlabel\nName a city.\t1\n")
    chosen.set_input_files({"name": "goals.v2.tsv.gz", "mimeType": "application/gzip", "buffer": packed})
    expect(mine).to_contain_text("goals.v2.tsv.gz, ")
    assert written(form)["prompts"]["prompts"]["source"].endswith(".tsv.gz")
    chosen.set_input_files({"name": "goals.csv", "mimeType": "text/csv", "buffer": b"goal,label\nName a city.,1\n"})
    expect(mine).to_contain_text("goals.csv, 26 bytes")
    source = written(form)["prompts"]["prompts"]["source"]
    assert source.startswith("upload:")
    assert source.endswith(".csv")
    expect(answer(form)).to_contain_text("valid survey")


def test_contrasts_are_added_and_names_stay_unique(form):
    form.get_by_role("button", name="Add a contrast").click()
    form.keyboard.type("refusal")
    form.keyboard.press("Enter")
    added = contrast(form, "contrast")
    expect(added).to_contain_text("The name stays contrast: refusal exists already.")
    added.get_by_label("positive").select_option("harmless")
    added.get_by_label("negative").select_option("harmful")
    added.get_by_label("paired").select_option("no")
    expected = {"positive": "harmless", "negative": "harmful", "paired": False}
    assert written(form)["contrasts"]["contrast"] == expected
    form.get_by_role("button", name="Remove prompt set harmful").click()
    expect(added.get_by_label("negative")).to_have_value("harmful")
    expect(answer(form)).to_contain_text("contrasts.refusal.positive: there is no prompt set 'harmful'")
    expect(contrast(form, "refusal").get_by_label("positive")).to_have_attribute("aria-invalid", "true")
    form.get_by_role("button", name="Remove contrast refusal").click()
    assert list(written(form)["contrasts"]) == ["contrast"]


def test_errors_are_shown_in_words_and_the_focus_stays(form):
    expect(answer(form)).to_contain_text("valid survey")
    expect(answer(form)).to_have_attribute("role", "status")  # a polite live region
    name = prompt_set(form, "harmful").get_by_label("name")
    name.fill("9th")
    name.press("Enter")
    expect(answer(form)).to_contain_text("given '9th'; a name begins with a letter from a to z")
    expect(prompt_set(form, "9th").get_by_label("name")).to_be_focused()
    expect(prompt_set(form, "9th").get_by_label("name")).to_have_attribute("aria-invalid", "true")
    text = form.locator("#spec-text")
    write(form, {"model": {"id": "smollm2-135m-instruct"}, "prompts": 3})
    expect(answer(form)).to_contain_text("prompts: given 3")
    expect(text).to_be_focused()
    expect(text).to_have_attribute("aria-invalid", "true")
    write(form, '{"model": {"id": "a/b"}, "model": {"id": "a/b"}, "prompts": {}}')
    expect(answer(form)).to_contain_text("model is given twice")
    write(form, {"model": {"id": "smollm2-135m-instruct"}, "prompts": {"a": {"source": "builtin:nouns"}}})
    expect(answer(form)).to_contain_text("valid survey")
    expect(text).not_to_have_attribute("aria-invalid", "true")
    expect(form.locator("#spec-problem")).to_have_attribute("role", "alert")
    expect(form.get_by_label("label")).to_be_enabled()


def test_without_a_cluster_the_button_copies_a_command_that_surveys_the_spec(form, tmp_path):
    expect(answer(form)).to_contain_text("no cluster")
    form.evaluate(COPIED)
    form.get_by_role("button", name="Copy command").click()
    expect(form.get_by_role("button", name="Copied")).to_be_visible()
    command = form.evaluate("window.copied")
    (tmp_path / "theodolite").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "theodolite").chmod(0o755)
    paths = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ran = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=paths, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["survey", "survey.yaml"]
    assert parse_text((tmp_path / "survey.yaml").read_text()) == written(form)
    expect(form.get_by_role("button", name="Copy command")).to_be_visible()


def test_the_spec_is_stored_until_it_is_submitted(form, place):
    with_cluster(form)
    form.get_by_label("label").fill("kept")
    form.get_by_role("link", name="Survey jobs").click()
    expect(form.locator("main")).to_contain_text("No survey job was submitted")
    form.get_by_role("link", name="New survey").click()
    expect(form.get_by_label("label")).to_have_value("kept")
    form.reload()
    expect(form.get_by_label("label")).to_have_value("kept")
    form.get_by_role("button", name="Start again").click()
    expect(form.get_by_label("label")).to_have_value("")
    form.get_by_role("button", name="Undo").click()
    expect(form.get_by_label("label")).to_have_value("kept")
    form.route("**/v1/jobs", lambda route: route.fulfill(status=202, json={"id": ID}))
    form.locator("#submit-spec").click()
    expect(form).to_have_url(f"{place}/#/jobs/{ID}")
    expect(form.locator("main h1")).to_have_text("Survey job")
    form.get_by_role("link", name="New survey").click()
    expect(form.get_by_label("label")).to_have_value("")


def test_the_form_offers_what_the_service_knows(form):
    models = form.locator("#known-models option").evaluate_all("options => options.map(one => one.value)")
    assert sorted(models) == sorted(MODEL_ALIASES)
    sets = prompt_set(form, "harmful").get_by_label("set", exact=True).locator("option")
    expect(sets).to_have_text(list(BUILTIN_SETS))
    analyses = form.get_by_role("group", name="Analyses").get_by_role("checkbox")
    assert sorted(analyses.evaluate_all("boxes => boxes.map(one => one.value)")) == sorted(ANALYSES)


@pytest.mark.parametrize("scheme", ["light", *at_night(["dark"])])
def test_the_form_is_accessible_and_fits_a_phone(form, scheme):
    form.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    for kind in ("typed here", "uploaded file", "hub dataset"):
        form.get_by_role("button", name="Add a prompt set").click()
        prompt_set(form, form.evaluate("document.activeElement.value")).get_by_label("source").select_option(kind)
    expect(answer(form)).to_contain_text("The spec is not valid")
    found = Axe().run(form)
    assert found.violations_count == 0, found.generate_report()
    for width in (400, 1000, 1400):
        form.set_viewport_size({"width": width, "height": 800})
        assert form.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
