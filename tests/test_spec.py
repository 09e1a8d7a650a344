"""The survey's spec: one canonical form for all spellings, and errors that say where, what and why."""

import hashlib
import json
import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from theodolite.errors import SpecError
from theodolite.sites import Site
from theodolite.spec import SurveySpec, canonical_json, digest_of, parse_spec, read_spec

MODEL = "model: {id: org/name}\n"
PAIR = """
prompts:
  harmful: {source: "builtin:harmful"}
  harmless: {source: "builtin:harmless"}
"""
NOUNS = "prompts: {nouns: {source: 'builtin:nouns'}}\n"
SURVEY = f"{MODEL}{PAIR}contrasts: {{refusal: {{positive: harmful, negative: harmless}}}}\n"

FULL = """
name: refusal
model: {id: org/name, revision: main, dtype: float32, attention: eager, trust_remote_code: true}
prompts:
  harmful: {source: "file:advbench.csv", column: goal, draw: {test_size: 0.2, random_state: 42}, limit: 64}
  harmless: {source: "hub:org/data", split: test, where: {input: ""}, template: chat, system: Be brief}
  long: {source: "builtin:nouns", template: "Say {prompt}", positions: all}
capture:
  sites: [resid_mid, resid_pre]
  layers: [3, 0]
  positions: [-1, -5]
  batch_tokens: 512
  shard_prompts: 8
  template_date: 2024-12-31
contrasts:
  refusal: {positive: harmful, negative: harmless, paired: false}
analyses: [curves]
"""


def parse(text: str) -> SurveySpec:
    return parse_spec(yaml.safe_load(text))


def prompts(settings: str) -> str:
    return f"{MODEL}prompts: {{goals: {{source: 'builtin:nouns', {settings}}}}}\n"


def capture(settings: str) -> str:
    return f"{SURVEY}capture: {{{settings}}}\n"


# What is not given


def test_defaults_are_those_of_the_contract() -> None:
    spec = parse(SURVEY)
    assert spec.name is None
    assert spec.model.model_dump() == {
        "id": "org/name",
        "revision": None,
        "dtype": "auto",
        "attention": "auto",
        "trust_remote_code": False,
    }
    assert spec.capture.model_dump() == {
        "sites": [Site.RESID_PRE, Site.RESID_MID],
        "layers": "all",
        "positions": [-1],
        "batch_tokens": 2048,
        "shard_prompts": 64,
        "template_date": date(2024, 7, 26),
    }
    assert spec.prompts["harmful"].model_dump() == {
        "source": "builtin:harmful",
        "split": "train",
        "column": None,
        "where": {},
        "draw": None,
        "limit": None,
        "template": None,
        "system": None,
        "positions": None,
    }
    assert spec.contrasts["refusal"].paired is None


def test_contrasts_may_be_left_out() -> None:
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


@pytest.mark.parametrize("options", [{}, {"indent": 2}, {"indent": "\t"}, {"ensure_ascii": False}])
def test_every_layout_of_json_is_read(tmp_path: Path, options: dict[str, Any]) -> None:
    survey = yaml.safe_load(MODEL + NOUNS)
    survey["prompts"]["nouns"]["template"] = 'Größe 😀 "{prompt}"'
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(survey, **options), encoding="utf-8")
    assert read_spec(path).digest() == parse_spec(survey).digest()


@pytest.mark.parametrize(
    ("given", "same"),
    [
        (capture("sites: [resid_mid, resid_pre]"), capture("sites: [resid_pre, resid_mid]")),
        (capture("layers: [2, 0, 1]"), capture("layers: [0, 1, 2]")),
        (capture("positions: [-1, -3]"), capture("positions: [-3, -1]")),
        (capture("layers: all"), SURVEY),
        (capture("template_date: 2024-07-26"), capture("template_date: '2024-07-26'")),
        (prompts("positions: [-1, -2]"), prompts("positions: [-2, -1]")),
        (prompts("limit: null"), prompts("where: {}")),
        (f"analyses: [curves]\n{SURVEY}", SURVEY),
    ],
)
def test_canonical_form_is_equal_for_equal_questions(given: str, same: str) -> None:
    assert parse(given).canonical() == parse(same).canonical()
    assert parse(given).digest() == parse(same).digest()


@pytest.mark.parametrize(
    "other",
    [
        SURVEY.replace("org/name", "org/other"),
        SURVEY.replace("id: org/name", "id: org/name, revision: v2"),
        SURVEY.replace("id: org/name", "id: org/name, dtype: float16"),
        SURVEY.replace('"builtin:harmless"', '"builtin:harmless", limit: 9'),
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


def test_name_is_hashed_nowhere() -> None:
    named = parse(f"name: first\n{SURVEY}")
    assert named.canonical() == parse(f"name: second\n{SURVEY}").canonical() == parse(SURVEY).canonical()
    assert named.digest() == parse(SURVEY).digest()


def test_canonical_form_is_compact_sorted_json_that_reads_back() -> None:
    spec = parse(FULL)
    text = spec.canonical()
    read_back = json.loads(text)
    assert list(read_back) == ["analyses", "capture", "contrasts", "model", "prompts"]
    assert text == canonical_json(read_back)
    assert ": " not in text.replace("Say {prompt}", "")
    assert parse_spec(read_back).digest() == spec.digest()


def test_canonical_json_ignores_key_order_and_keeps_letters() -> None:
    assert canonical_json({"b": [1, "ü"], "a": None}) == '{"a":null,"b":[1,"ü"]}'
    assert digest_of({"b": 1, "a": 2}) == digest_of({"a": 2, "b": 1})


def test_digest_is_sha256_of_the_canonical_form() -> None:
    spec = parse(SURVEY)
    assert spec.digest() == hashlib.sha256(spec.canonical().encode("utf-8")).hexdigest()


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
    }
    for owner, definition in objects.items():
        for field, facts in definition["properties"].items():
            described = schema["$defs"][facts["$ref"].rpartition("/")[2]] if "$ref" in facts else facts
            assert described.get("description"), f"{owner}.{field} has no description"


def test_schema_refuses_unknown_keys_everywhere() -> None:
    for owner, definition in _objects(SurveySpec.model_json_schema()).items():
        assert definition["additionalProperties"] is False, owner


# Pairing


@pytest.mark.parametrize(
    ("harmful", "harmless", "is_paired"),
    [
        ("source: 'builtin:harmful'", "source: 'builtin:harmless'", True),
        ("source: 'builtin:harmless'", "source: 'builtin:harmful'", True),
        ("source: 'builtin:harmful', limit: 8", "source: 'builtin:harmless', limit: 8", True),
        ("source: 'builtin:harmful', limit: 8", "source: 'builtin:harmless'", False),
        ("source: 'builtin:harmful', limit: 8", "source: 'builtin:harmless', limit: 9", False),
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


@pytest.mark.parametrize("chosen", [True, False])
@pytest.mark.parametrize("sources", [("builtin:harmful", "builtin:harmless"), ("file:a.csv", "file:b.csv")])
def test_paired_as_given_overrides_the_default(sources: tuple[str, str], chosen: bool) -> None:
    spec = parse(
        f"{MODEL}prompts: {{harmful: {{source: '{sources[0]}'}}, harmless: {{source: '{sources[1]}'}}}}\n"
        f"contrasts: {{refusal: {{positive: harmful, negative: harmless, paired: {str(chosen).lower()}}}}}"
    )
    assert spec.is_paired("refusal") is chosen


# What is wrong, where, and what is allowed

TOP_FIELDS = "allowed: name, model, prompts, capture, contrasts, analyses"
SET_FIELDS = "allowed: source, split, column, where, draw, limit, template, system, positions"
SITES = "resid_pre, resid_mid, resid_post, attn_out, mlp_out"
NAME_RULE = "must match ^[a-z][a-z0-9_-]{0,47}$"
FROM_THE_END = "positions count from the end: -1 is the last token"

BAD = {
    "unknown_field": (f"{SURVEY}colour: red", ["  colour: unknown field, given 'red'", TOP_FIELDS]),
    "unknown_field_of_model": (
        "model: {id: a, size: 7}\n" + NOUNS,
        [
            "  model.size: unknown field, given 7",
            "allowed: id, revision, dtype, attention, trust_remote_code",
        ],
    ),
    "unknown_field_of_set": (
        prompts("colum: goal"),
        ["  prompts.goals.colum: unknown field, given 'goal'", SET_FIELDS],
    ),
    "unknown_field_of_set_called_draw": (
        MODEL + "prompts: {draw: {source: 'builtin:nouns', colum: goal}}",
        ["  prompts.draw.colum: unknown field, given 'goal'", SET_FIELDS],
    ),
    "unknown_field_of_draw": (
        prompts("draw: {test_size: 0.2, random_state: 1, seed: 3}"),
        ["  prompts.goals.draw.seed: unknown field, given 3", "allowed: test_size, random_state"],
    ),
    "unknown_field_of_capture": (
        capture("site: [resid_pre]"),
        [
            "  capture.site: unknown field, given ['resid_pre']",
            "allowed: sites, layers, positions, batch_tokens, shard_prompts, template_date",
        ],
    ),
    "unknown_field_of_contrast": (
        SURVEY.replace("negative: harmless", "negative: harmless, pair: true"),
        ["  contrasts.refusal.pair: unknown field, given True", "allowed: positive, negative, paired"],
    ),
    "unknown_builtin": (
        MODEL + "prompts: {verbs: {source: 'builtin:verbs'}}",
        [
            "  prompts.verbs.source: given 'builtin:verbs'",
            "no built-in set 'verbs'; allowed: harmful, harmless, nouns",
        ],
    ),
    "unknown_kind_of_source": (
        MODEL + "prompts: {goals: {source: 'ftp:goals.csv'}}",
        ["  prompts.goals.source: given 'ftp:goals.csv'", "must match ^(builtin|file|hub):.+$"],
    ),
    "source_without_place": (
        MODEL + "prompts: {goals: {source: 'file:'}}",
        ["  prompts.goals.source: given 'file:'", "must match ^(builtin|file|hub):.+$"],
    ),
    "bad_name_of_set": (
        MODEL + "prompts: {Bad Name: {source: 'builtin:nouns'}}",
        ["  prompts.Bad Name", "given 'Bad Name'", NAME_RULE],
    ),
    "too_long_name_of_set": (
        MODEL + f"prompts: {{{'a' * 49}: {{source: 'builtin:nouns'}}}}",
        [f"  prompts.{'a' * 49}", NAME_RULE],
    ),
    "name_of_set_leaves_folder": (
        MODEL + "prompts: {../up: {source: 'builtin:nouns'}}",
        ["  prompts.../up", "given '../up'", NAME_RULE],
    ),
    "bad_name_of_contrast": (
        f"{MODEL}{PAIR}contrasts: {{9th: {{positive: harmful, negative: harmless}}}}",
        ["  contrasts.9th", "given '9th'", NAME_RULE],
    ),
    "unknown_analysis": (
        f"{SURVEY}analyses: [curves, horoscope]",
        ["  analyses: given ['curves', 'horoscope']", "'horoscope' does not exist", "allowed: curves"],
    ),
    "analysis_twice": (
        f"{SURVEY}analyses: [curves, curves]",
        ["  analyses: given ['curves', 'curves']", "something twice"],
    ),
    "unknown_site": (
        capture("sites: [resid_pre, resid_middle]"),
        [
            "  capture.sites.1: given 'resid_middle'",
            "'resid_pre', 'resid_mid', 'resid_post', 'attn_out', 'mlp_out'",
        ],
    ),
    "resid_final_asked": (
        capture("sites: [resid_pre, resid_final]"),
        ["  capture.sites: given ['resid_pre', 'resid_final']", "resid_final always comes along", SITES],
    ),
    "site_twice": (
        capture("sites: [resid_pre, resid_pre]"),
        ["  capture.sites: given ['resid_pre', 'resid_pre']", "something twice"],
    ),
    "no_site": (capture("sites: []"), ["  capture.sites: given []", "at least 1"]),
    "positive_position": (
        capture("positions: [-1, 3]"),
        ["  capture.positions: given [-1, 3]", FROM_THE_END],
    ),
    "position_zero": (capture("positions: [0]"), ["  capture.positions: given [0]", FROM_THE_END]),
    "position_twice": (
        capture("positions: [-1, -1]"),
        ["  capture.positions: given [-1, -1]", "something twice"],
    ),
    "no_position": (capture("positions: []"), ["  capture.positions: given []", "must not be empty"]),
    "positive_position_of_set": (
        prompts("positions: [1]"),
        ["  prompts.goals.positions: given [1]", FROM_THE_END],
    ),
    "unknown_positions_of_set": (
        prompts("positions: some"),
        ["  prompts.goals.positions", "'some'", "'all'"],
    ),
    "layer_twice": (capture("layers: [1, 1]"), ["  capture.layers: given [1, 1]", "something twice"]),
    "no_layer": (capture("layers: []"), ["  capture.layers: given []", "must not be empty"]),
    "negative_layer": (
        capture("layers: [0, -1]"),
        ["  capture.layers", "given -1", "greater than or equal to 0"],
    ),
    "unknown_layers": (capture("layers: some"), ["  capture.layers", "given 'some'", "'all'", "list"]),
    "no_tokens_in_a_batch": (
        capture("batch_tokens: 0"),
        ["  capture.batch_tokens: given 0", "greater than or equal to 1"],
    ),
    "text_for_a_number": (
        capture("shard_prompts: many"),
        ["  capture.shard_prompts: given 'many'", "valid integer"],
    ),
    "text_for_a_date": (
        capture("template_date: yesterday"),
        ["  capture.template_date: given 'yesterday'", "valid date"],
    ),
    "contrast_of_unknown_positive": (
        SURVEY.replace("positive: harmful", "positive: evil"),
        ["  contrasts.refusal.positive:", "no prompt set 'evil'", "allowed: harmful, harmless"],
    ),
    "contrast_of_unknown_negative": (
        SURVEY.replace("negative: harmless", "negative: good"),
        ["  contrasts.refusal.negative:", "no prompt set 'good'", "allowed: harmful, harmless"],
    ),
    "contrast_of_all_positions": (
        SURVEY.replace('"builtin:harmful"', '"builtin:harmful", positions: all'),
        ["  contrasts.refusal.positive:", "'harmful' keeps all positions", "a list of positions"],
    ),
    "contrast_of_one_side": (
        SURVEY.replace(", negative: harmless", ""),
        ["  contrasts.refusal.negative: is required"],
    ),
    "template_without_prompt": (
        prompts("template: Say it"),
        [
            "  prompts.goals.template: given 'Say it'",
            "allowed: chat, none, or a text that contains {prompt}",
        ],
    ),
    "system_with_template_none": (
        prompts("template: none, system: Be kind"),
        ["  prompts.goals: system is given", "needs template: chat", "not 'none'"],
    ),
    "system_with_own_template": (
        prompts("template: 'Say {prompt}', system: Be kind"),
        ["  prompts.goals: system is given", "needs template: chat", "not 'Say {prompt}'"],
    ),
    "limit_zero": (prompts("limit: 0"), ["  prompts.goals.limit: given 0", "greater than or equal to 1"]),
    "draw_leaves_nothing": (
        prompts("draw: {test_size: 1.0, random_state: 0}"),
        ["  prompts.goals.draw.test_size: given 1.0", "less than 1"],
    ),
    "draw_without_seed": (
        prompts("draw: {test_size: 0.5}"),
        ["  prompts.goals.draw.random_state: is required"],
    ),
    "no_model": (NOUNS, ["  model: is required"]),
    "no_model_id": ("model: {dtype: auto}\n" + NOUNS, ["  model.id: is required"]),
    "empty_model_id": ("model: {id: ''}\n" + NOUNS, ["  model.id: given ''", "at least 1 character"]),
    "model_is_no_mapping": ("model: gpt2\n" + NOUNS, ["  model: given 'gpt2'", "valid dictionary"]),
    "unknown_dtype": (
        "model: {id: a, dtype: int8}\n" + NOUNS,
        ["  model.dtype: given 'int8'", "'auto', 'float32', 'bfloat16' or 'float16'"],
    ),
    "unknown_attention": (
        "model: {id: a, attention: fast}\n" + NOUNS,
        ["  model.attention: given 'fast'", "'auto', 'eager', 'sdpa' or 'flash_attention_2'"],
    ),
    "no_prompts": (MODEL, ["  prompts: is required"]),
    "no_prompt_set": (MODEL + "prompts: {}", ["  prompts: given {}", "at least 1"]),
    "set_without_source": (MODEL + "prompts: {goals: {limit: 3}}", ["  prompts.goals.source: is required"]),
    "set_is_no_mapping": (
        MODEL + "prompts: {goals: 'builtin:nouns'}",
        ["  prompts.goals: given 'builtin:nouns'", "valid dictionary"],
    ),
}


@pytest.mark.parametrize(("text", "words"), BAD.values(), ids=BAD.keys())
def test_message_names_field_value_and_what_is_allowed(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        read_spec(path)
    message = str(caught.value)
    assert message.startswith(f"{path} is not a valid survey:\n")
    for part in words:
        assert part in message


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (capture("layers: [0, -1]"), r"  capture\.layers(\.1)?: given .*-1.*"),
        (capture("layers: some"), r"  capture\.layers: given 'some'; .*"),
        (prompts("positions: some"), r"  prompts\.goals\.positions: given 'some'; .*"),
    ],
    ids=["negative_layer", "unknown_layers", "unknown_positions"],
)
def test_a_field_of_two_kinds_is_named_as_the_user_wrote_it(text: str, line: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text)
    for written in str(caught.value).splitlines()[1:]:
        assert re.fullmatch(line, written)


def test_every_fault_has_its_own_line() -> None:
    with pytest.raises(SpecError) as caught:
        parse("model: {id: a, dtype: int8, size: 3}\nprompts: {}")
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["model.dtype", "model.size", "prompts"]


def test_a_long_value_is_shortened_in_the_message() -> None:
    with pytest.raises(SpecError) as caught:
        parse(prompts(f"template: {'x' * 5000}"))
    assert "xxx…" in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_spec_error_exits_with_two() -> None:
    with pytest.raises(SpecError) as caught:
        parse(MODEL)
    assert caught.value.exit_code == 2


# The file itself


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"model: {id: a\nprompts: ]", ["is neither YAML nor JSON", "line 2"]),
        (b"model:\n\tid: a", ["is neither YAML nor JSON", "line 2"]),
        (b'{"model": {"id": "a"', ["is neither YAML nor JSON"]),
        (b"model: {id: a}\nmodel: {id: b}\nprompts: {a: {source: 'builtin:nouns'}}", ["model"]),
        (b"model: {id: a}\ncapture: {template_date: 2024-13-45}", ["month"]),
        (b"- model\n- prompts\n", ["must hold a mapping with the keys name, model, prompts"]),
        (b"just a text", ["must hold a mapping with the keys name, model, prompts"]),
        (b"", ["must hold a mapping with the keys name, model, prompts"]),
        (b"model: {id: \xff\xfe}", ["cannot read the spec"]),
    ],
    ids=[
        "unbalanced",
        "tab_in_yaml",
        "cut_json",
        "key_given_twice",
        "no_such_day",
        "list",
        "text",
        "empty",
        "not_utf8",
    ],
)
def test_a_file_that_is_no_spec_is_refused_by_name(tmp_path: Path, content: bytes, words: list[str]) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(content)
    with pytest.raises(SpecError) as caught:
        read_spec(path)
    for part in [str(path), *words]:
        assert part in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"cannot read the spec .*nowhere\.yaml"):
        read_spec(tmp_path / "nowhere.yaml")


def test_a_folder_is_no_spec(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot read the spec"):
        read_spec(tmp_path)
