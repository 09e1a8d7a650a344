"""The spec of a survey: canonical form, schema, and pairing of sets."""

import hashlib
import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from support.each import each
from support.spec_texts import FULL, MODEL, NOUNS, SURVEY, capture, parse, prompts

from theodolite.digests import canonical_json, digest_of
from theodolite.errors import SpecError
from theodolite.sites import Site
from theodolite.spec import SurveySpec
from theodolite.spec_file import parse_spec, read_spec
from theodolite.spec_parts import NamedPosition

# Defaults


def test_defaults_are_those_of_the_contract() -> None:
    spec = parse(SURVEY)
    assert spec.name is None
    assert spec.model.model_dump() == {
        "id": "org/name",
        "revision": None,
        "dtype": "auto",
        "attention": "auto",
        "trust_remote_code": False,
        "weights": "trained",
        "template": None,
        "adapter": None,
        "adapter_revision": None,
    }
    assert spec.capture.model_dump() == {
        "sites": [Site.RESID_PRE, Site.RESID_MID],
        "final": True,
        "layers": "all",
        "positions": [-1],
        "keep": None,
        "batch_tokens": "auto",
        "shard_prompts": "auto",
        "template_date": date(2024, 7, 26),
    }
    assert spec.prompts["harmful"].model_dump() == {
        "source": "builtin:harmful",
        "texts": [],
        "split": "train",
        "config": None,
        "revision": None,
        "data_files": [],
        "column": None,
        "where": {},
        "draw": None,
        "skip": 0,
        "limit": None,
        "too_long": "refuse",
        "template": None,
        "system": None,
        "template_args": {},
        "prefill": None,
        "special_tokens": "text",
        "positions": None,
    }
    assert spec.contrasts["refusal"].paired is None


def test_contrasts_may_be_omitted() -> None:
    assert parse(MODEL + NOUNS).contrasts == {}


def test_every_given_value_is_kept() -> None:
    spec = parse(FULL)
    assert spec.name == "refusal"
    assert spec.model.trust_remote_code
    assert spec.prompts["harmful"].draw is not None
    assert spec.prompts["harmful"].draw.random_state == 42
    assert spec.prompts["harmless"].where == {"input": ""}
    assert spec.prompts["long"].positions == "all"
    assert spec.capture.template_date == date(2024, 12, 31)
    assert spec.contrasts["refusal"].paired is False


def test_a_spec_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        parse(SURVEY).name = "other"


# The canonical form


def test_json_spelling_equals_yaml_spelling(tmp_path: Path) -> None:
    as_yaml, as_json = tmp_path / "spec.yaml", tmp_path / "spec.json"
    as_yaml.write_text(FULL, encoding="utf-8")
    as_json.write_text(json.dumps(yaml.safe_load(FULL), default=str), encoding="utf-8")
    assert read_spec(as_yaml).canonical() == read_spec(as_json).canonical()


@each("options", [{}, {"indent": 2}, {"indent": "\t"}, {"ensure_ascii": False}])
def test_every_layout_of_json_is_read(tmp_path: Path, options: dict[str, Any]) -> None:
    survey = yaml.safe_load(MODEL + NOUNS)
    survey["prompts"]["nouns"]["template"] = 'Größe 😀 "{prompt}"'
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(survey, **options), encoding="utf-8")
    assert read_spec(path).digest() == parse_spec(survey).digest()


@each(
    "given, same",
    [
        (capture("sites: [resid_mid, resid_pre]"), capture("sites: [resid_pre, resid_mid]")),
        (capture("layers: [2, 0, 1]"), capture("layers: [0, 1, 2]")),
        (capture("positions: [-1, -3]"), capture("positions: [-3, -1]")),
        (capture("layers: all"), SURVEY),
        (capture("template_date: 2024-07-26"), capture("template_date: '2024-07-26'")),
        (prompts("positions: [-1, -2]"), prompts("positions: [-2, -1]")),
        (prompts("limit: null"), prompts("where: {}")),
        (f"analyses: [words, curves]\n{SURVEY}", f"analyses: [curves, words]\n{SURVEY}"),
        (f"heads: {{offsets: [7]}}\n{SURVEY}", f"heads: {{offsets: [7, 0]}}\n{SURVEY}"),
    ],
)
def test_canonical_form_is_equal_for_equal_questions(given: str, same: str) -> None:
    assert parse(given).canonical() == parse(same).canonical()
    assert parse(given).digest() == parse(same).digest()


@each(
    "other",
    [
        SURVEY.replace("org/name", "org/other"),
        SURVEY.replace("id: org/name", "id: org/name, revision: v2"),
        SURVEY.replace("id: org/name", "id: org/name, dtype: float16"),
        SURVEY.replace("id: org/name", "id: org/name, weights: random"),
        SURVEY.replace('"builtin:harmless"', '"builtin:harmless", limit: 9'),
        SURVEY.replace('"builtin:harmless"', '"builtin:harmless", skip: 9'),
        SURVEY.replace("negative: harmless", "negative: harmless, paired: false"),
        SURVEY.replace("refusal", "denial"),
        capture("layers: [0]"),
        capture("sites: [resid_pre]"),
        capture("positions: [-2]"),
        capture("template_date: 2024-07-27"),
        capture("batch_tokens: 2047"),
    ],
)
def test_digest_differs_for_another_question(other: str) -> None:
    assert parse(other).digest() != parse(SURVEY).digest()


def test_the_label_is_part_of_no_digest() -> None:
    named = parse(f"name: first\n{SURVEY}")
    assert named.canonical() == parse(f"name: second\n{SURVEY}").canonical() == parse(SURVEY).canonical()
    assert named.digest() == parse(SURVEY).digest()


def test_canonical_form_is_compact_sorted_json_that_reads_back() -> None:
    spec = parse(FULL)
    text = spec.canonical()
    read_back = json.loads(text)
    assert list(read_back) == [
        *("analyses", "capture", "contrasts", "effects", "gram", "heads", "model", "probes", "prompts", "words")
    ]
    assert text == canonical_json(read_back)
    assert ": " not in text.replace("Say {prompt}", "")
    assert parse_spec(read_back).digest() == spec.digest()


def test_canonical_json_ignores_key_order_and_keeps_letters() -> None:
    assert canonical_json({"b": [1, "ü"], "a": None}) == '{"a":null,"b":[1,"ü"]}'
    assert digest_of({"b": 1, "a": 2}) == digest_of({"a": 2, "b": 1})


def test_digest_is_sha256_of_the_canonical_form() -> None:
    spec = parse(SURVEY)
    assert spec.digest() == hashlib.sha256(spec.canonical().encode("utf-8")).hexdigest()


@each("name", ["effects", "probes"])
def test_the_options_of_an_analysis_of_contrasts_need_a_contrast(name: str) -> None:
    without = {**yaml.safe_load(SURVEY), "contrasts": {}, name: {}}
    with pytest.raises(SpecError, match=f"{name} needs contrasts, but contrasts is empty; add a contrast"):
        parse_spec(without)


# The schema


def _objects(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {"SurveySpec": schema, **{k: v for k, v in schema["$defs"].items() if "properties" in v}}


def test_schema_describes_every_field() -> None:
    schema = SurveySpec.model_json_schema()
    objects = _objects(schema)
    assert set(objects) == {
        "SurveySpec",
        "ModelSpec",
        "PromptSetSpec",
        "DrawSpec",
        "CaptureSpec",
        "ContrastSpec",
        "EffectsSpec",
        "GramSpec",
        "HeadsSpec",
        "NamedPosition",
        "ProbesSpec",
        "WordsSpec",
    }
    for owner, definition in objects.items():
        for field, facts in definition["properties"].items():
            described = schema["$defs"][facts["$ref"].rpartition("/")[2]] if "$ref" in facts else facts
            assert described.get("description"), f"{owner}.{field} has no description"


def test_schema_refuses_unknown_keys_everywhere() -> None:
    for owner, definition in _objects(SurveySpec.model_json_schema()).items():
        assert definition["additionalProperties"] is False, owner


# Pairing


@each(
    "harmful, harmless, is_paired",
    [
        ("source: 'builtin:harmful'", "source: 'builtin:harmless'", True),
        ("source: 'builtin:harmless'", "source: 'builtin:harmful'", True),
        ("source: 'builtin:harmful', limit: 8", "source: 'builtin:harmless', limit: 8", True),
        ("source: 'builtin:harmful', limit: 8", "source: 'builtin:harmless'", False),
        ("source: 'builtin:harmful', limit: 8", "source: 'builtin:harmless', limit: 9", False),
        ("source: 'builtin:harmful', skip: 8", "source: 'builtin:harmless', skip: 8", True),
        ("source: 'builtin:harmful', skip: 8", "source: 'builtin:harmless'", False),
        (
            "source: 'builtin:harmful', draw: {test_size: 0.5, random_state: 1}",
            "source: 'builtin:harmless', draw: {test_size: 0.5, random_state: 1}",
            True,
        ),
        (
            "source: 'builtin:harmful', draw: {test_size: 0.5, random_state: 1}",
            "source: 'builtin:harmless', draw: {test_size: 0.5, random_state: 2}",
            False,
        ),
        ("source: 'builtin:harmful', where: {prompt: x}", "source: 'builtin:harmless'", False),
        ("source: 'builtin:harmful'", "source: 'builtin:harmful'", False),
        ("source: 'builtin:harmful'", "source: 'builtin:nouns'", False),
        ("source: 'file:a.csv'", "source: 'file:b.csv'", False),
    ],
)
def test_only_the_builtin_pair_selected_alike_is_paired_by_default(
    harmful: str, harmless: str, is_paired: bool
) -> None:
    spec = parse(
        f"{MODEL}prompts: {{harmful: {{{harmful}}}, harmless: {{{harmless}}}}}\n"
        "contrasts: {refusal: {positive: harmful, negative: harmless}}"
    )
    assert spec.is_paired("refusal") is is_paired


@each("chosen", [True, False])
@each("sources", [("builtin:harmful", "builtin:harmless"), ("file:a.csv", "file:b.csv")])
def test_paired_as_given_overrides_the_default(sources: tuple[str, str], chosen: bool) -> None:
    spec = parse(
        f"{MODEL}prompts: {{harmful: {{source: '{sources[0]}'}}, harmless: {{source: '{sources[1]}'}}}}\n"
        f"contrasts: {{refusal: {{positive: harmful, negative: harmless, paired: {str(chosen).lower()}}}}}"
    )
    assert spec.is_paired("refusal") is chosen


POSITIONS = {"last": {"name": "said"}, "mean": {"name": "said", "token": "mean"}, "other": {"name": "other"}}


def with_positions(listed: Any, **of_harmless: Any) -> SurveySpec:
    sets = {"harmful": {"source": "builtin:harmful"}, "harmless": {"source": "builtin:harmless", **of_harmless}}
    contrast = {"refusal": {"positive": "harmful", "negative": "harmless"}}
    return parse_spec({"model": {"id": "m"}, "prompts": sets, "capture": {"positions": listed}, "contrasts": contrast})


def test_labels_of_positions_are_numbers_or_with_a_name_texts() -> None:
    assert with_positions([-1, -2]).labels_of("harmful") == [-2, -1]
    named = with_positions([-1, POSITIONS["mean"], -2, POSITIONS["other"]], positions=[-1])
    assert named.labels_of("harmful") == ["said", "other", "-2", "-1"]
    assert named.labels_of("harmless") == ["-1"]
    assert named.means == {"said"}
    assert parse_spec(json.loads(named.canonical())) == named


@each(
    "positions, of_harmless, words",
    [
        ([0], {}, ["capture.positions", "first: 0"]),
        ([{"name": "Said"}], {}, ["capture.positions.0.name", "a to z"]),
        ([{"role": "user"}], {}, ["capture.positions.0.name", "required"]),
        ([{**POSITIONS["mean"], "first": 1}], {}, ["capture.positions.0", "leave one out"]),
        ([{"name": "said", "word": "x"}], {}, ["capture.positions.0.word", "turn"]),
        ([POSITIONS["last"], POSITIONS["mean"]], {}, ["said is listed twice"]),
        ([POSITIONS["last"]], {"positions": [POSITIONS["mean"]]}, ["'said'", "two names"]),
        ([POSITIONS["last"]], {"positions": [POSITIONS["other"]]}, ["[said]", "[other]", "common"]),
    ],
)
def test_a_wrong_named_position_is_refused_in_one_line(
    positions: Any, of_harmless: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(SpecError) as refused:
        with_positions(positions, **of_harmless)
    (line,) = str(refused.value).splitlines()[1:]
    assert all(word in line for word in words), line


def test_a_position_is_found_by_its_set_and_equal_rules_are_equal() -> None:
    named = with_positions([POSITIONS["last"], -1], positions=[{"name": "said", "text": "bread"}, -1])
    found = [named.position_of(name, "said") for name in ("harmful", "harmless")]
    assert [one.meaning for one in found if isinstance(one, NamedPosition)] == [
        "the last token of the message (role user)",
        "the last token of 'bread' (role user)",
    ]
    assert named.position_of("harmful", "-1") == -1
    rules = [NamedPosition(name="said", **rule) for rule in ({}, {"token": "last"}, {"first": 1})]
    assert rules[0] == rules[1] != rules[2]
    assert NamedPosition(name="said", first=0) == NamedPosition(name="said", token="first")


@each("of_effects", [{"effects": {}}, {"analyses": ["effects"]}])
def test_effects_need_a_position_of_a_single_token(of_effects: dict[str, Any]) -> None:
    spec = with_positions([POSITIONS["mean"]]).model_dump(mode="json")
    with pytest.raises(SpecError, match="'refusal' have only means in common"):
        parse_spec({**spec, **of_effects})
