"""Errors of specs: the field, the given value, and the allowed values."""

import re
from pathlib import Path
from typing import Any

import pytest
from support.each import each
from support.spec_texts import MODEL, NOUNS, PAIR, SURVEY, capture, parse, prompts

from theodolite.errors import SpecError
from theodolite.spec_file import parse_spec, read_spec

# Errors of fields

TOP_FIELDS = "allowed: name, model, prompts, capture, contrasts, analyses"
SET_FIELDS = (
    "allowed: source, texts, split, config, revision, data_files, column, where, draw, skip, limit, too_long, "
    "template, system, template_args, prefill, special_tokens, positions"
)
SITES = "resid_pre, resid_mid, resid_mid_sum, resid_post, head_out, attn_out, mlp_out"
NAME_RULE = "a name begins with a letter from a to z"
FROM_THE_END = "positions count from the end: -1 is the last token"

BAD = {
    "unknown_field": (f"{SURVEY}colour: red", ["  colour: unknown field, given 'red'", TOP_FIELDS]),
    "unknown_field_of_model": (
        "model: {id: a, size: 7}\n" + NOUNS,
        [
            "  model.size: unknown field, given 7",
            "allowed: id, revision, dtype, attention, trust_remote_code, weights, template, adapter, adapter_revision",
        ],
    ),
    "unknown_weights": (
        SURVEY.replace("id: org/name", "id: org/name, weights: rnd"),
        ["  model.weights: given 'rnd'; input should be 'trained' or 'random'"],
    ),
    "adapter_revision_alone": (
        SURVEY.replace("id: org/name", "id: org/name, adapter_revision: main"),
        ["  model: adapter_revision is given without adapter", "give the adapter, or leave it out"],
    ),
    "adapter_of_random_weights": (
        SURVEY.replace("id: org/name", "id: org/name, adapter: org/lora, weights: random"),
        ["  model: weights is random, but an adapter is given"],
    ),
    "adapter_of_own_code": (
        SURVEY.replace("id: org/name", "id: org/name, adapter: org/lora, trust_remote_code: true"),
        ["  model: trust_remote_code is true, but an adapter is given", "set trust_remote_code: false"],
    ),
    "random_weights_of_own_code": (
        SURVEY.replace("id: org/name", "id: org/name, weights: random, trust_remote_code: true"),
        [
            "  model: weights is random, but trust_remote_code is true",
            "set trust_remote_code: false or weights: trained",
        ],
    ),
    "config_of_a_file": (
        prompts("config: main").replace("builtin:nouns", "file:a.csv"),
        ["prompts.goals: config is given, but source is 'file:a.csv'; only hub datasets have it, so leave it out"],
    ),
    "revision_of_a_builtin_set": (prompts("revision: main"), ["prompts.goals: revision is given", "leave it out"]),
    "data_files_of_a_folder": (
        prompts("data_files: [a]").replace("builtin:nouns", "file:a"),
        ["prompts.goals: data_files is given, but source is 'file:a'"],
    ),
    "split_of_a_builtin_set": (prompts("split: test"), ["split is 'test'", "only hub datasets and folders"]),
    "split_of_a_file": (
        prompts("split: test").replace("builtin:nouns", "file:a.csv.gz"),
        ["split is 'test', but source is 'file:a.csv.gz'", "have splits, so leave it out"],
    ),
    "hub_of_a_folder": (
        prompts("limit: 2").replace("builtin:nouns", "hub:/data/saved"),
        ["prompts.goals.source: given 'hub:/data/saved'; must be hub:OWNER/NAME", "a file or folder here is file:PATH"],
    ),
    "hub_of_a_relative_folder": (prompts("limit: 2").replace("builtin:nouns", "hub:./saved"), ["file:PATH"]),
    "hub_of_a_bucket": (prompts("limit: 2").replace("builtin:nouns", "hub:buckets/a/b/c"), ["hub:OWNER/NAME"]),
    **{
        f"data_files_elsewhere_{number}": (
            prompts(f"data_files: ['{path}']").replace("builtin:nouns", "hub:a/b"),
            ["prompts.goals.data_files", f"{path!r} is not a relative path in the dataset's repository"],
        )
        for number, path in enumerate(
            ["/etc/hosts", "~/a.csv", "../a.csv", "a/../../b", "https://a.org/b.csv", "file:/etc/hosts"]
        )
    },
    "data_file_twice": (prompts("data_files: [a, a]").replace("builtin:nouns", "hub:a/b"), ["a is listed twice"]),
    "unknown_rule_for_long_prompts": (
        prompts("too_long: cut"),
        ["prompts.goals.too_long: given 'cut'", "'refuse', 'skip', 'truncate_left' or 'truncate_right'"],
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
            "allowed: sites, final, layers, positions, keep, batch_tokens, shard_prompts, template_date",
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
            "no built-in set 'verbs'; allowed: harmful, harmless, everyday, nouns",
        ],
    ),
    "unknown_kind_of_source": (
        MODEL + "prompts: {goals: {source: 'ftp:goals.csv'}}",
        ["  prompts.goals.source: given 'ftp:goals.csv'", "allowed: builtin:NAME, file:PATH, hub:DATASET"],
    ),
    "source_without_path": (
        MODEL + "prompts: {goals: {source: 'file:'}}",
        ["  prompts.goals.source: given 'file:'", "allowed: builtin:NAME, file:PATH, hub:DATASET"],
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
        ["  analyses: given ['curves', 'horoscope']", "'horoscope' does not exist", "allowed: separation"],
    ),
    "analysis_twice": (
        f"{SURVEY}analyses: [curves, curves]",
        ["  analyses: given ['curves', 'curves']", "is listed twice"],
    ),
    "unknown_site": (
        capture("sites: [resid_pre, resid_middle]"),
        [
            "  capture.sites.1: given 'resid_middle'",
            "'resid_pre', 'resid_mid', 'resid_mid_sum', 'resid_post', 'head_out', 'attn_out', 'mlp_out'",
        ],
    ),
    "resid_final_requested": (
        capture("sites: [resid_pre, resid_final]"),
        [
            "  capture.sites: given ['resid_pre', 'resid_final']",
            "resid_final is captured unless capture.final is false",
            SITES,
        ],
    ),
    "more_samples_than_are_kept": (
        capture("keep: 100") + "gram: {samples: 200}\n",
        ["gram.samples is 200, but capture.keep is 100", "set gram.samples to 100 or less"],
    ),
    "too_few_kept_samples": (
        capture("keep: 9") + "analyses: [separation]\n",
        ["analyses: 'separation' needs the activations of at least 10 prompts, but capture.keep is 9"],
    ),
    "site_twice": (
        capture("sites: [resid_pre, resid_pre]"),
        ["  capture.sites: given ['resid_pre', 'resid_pre']", "is listed twice"],
    ),
    "no_site": (capture("sites: []"), ["  capture.sites: given []", "at least 1"]),
    "positive_position": (
        capture("positions: [-1, 3]"),
        ["  capture.positions: given [-1, 3]", FROM_THE_END],
    ),
    "position_zero": (capture("positions: [0]"), ["  capture.positions: given [0]", FROM_THE_END]),
    "position_twice": (
        capture("positions: [-1, -1]"),
        ["  capture.positions: given [-1, -1]", "is listed twice"],
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
    "layer_twice": (capture("layers: [1, 1]"), ["  capture.layers: given [1, 1]", "is listed twice"]),
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
        ["  contrasts.refusal.positive:", "'harmful' has positions: all", "a list of positions"],
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
        ["  prompts.goals: system is given", "needs template: chat", "template is 'none'"],
    ),
    "system_with_own_template": (
        prompts("template: 'Say {prompt}', system: Be kind"),
        ["  prompts.goals: system is given", "needs template: chat", "template is 'Say {prompt}'"],
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
    "model_is_no_mapping": ("model: gpt2\n" + NOUNS, ["  model: given 'gpt2'", "must be a mapping"]),
    "unknown_dtype": (
        "model: {id: a, dtype: int8}\n" + NOUNS,
        ["  model.dtype: given 'int8'", "'auto', 'float32', 'bfloat16' or 'float16'"],
    ),
    "unknown_attention": (
        "model: {id: a, attention: fast}\n" + NOUNS,
        ["  model.attention: given 'fast'", "'auto', 'eager', 'sdpa' or 'flash_attention_2'"],
    ),
    "no_prompts": (MODEL, ["  prompts: is required"]),
    "curves_without_prompts": (MODEL + "prompts: {}\nanalyses: [curves]", ["  analyses: 'curves' needs prompts"]),
    "words_without_vectors": (
        SURVEY + "heads: {vectors: 0}\nanalyses: [words]",
        ["  analyses: 'words' needs singular vectors, but heads.vectors is 0; set it to 1 or more"],
    ),
    "no_analysis": (SURVEY + "analyses: []", ["  analyses: given []", "must not be empty"]),
    "negative_offset": (SURVEY + "heads: {offsets: [-1]}", ["  heads.offsets.0: given -1"]),
    "offset_twice": (SURVEY + "heads: {offsets: [1, 1]}", ["  heads.offsets: given [1, 1]", "twice"]),
    "composition_backwards": (SURVEY + "heads: {composition: [3, 1]}", ["  heads.composition", "before the last"]),
    "unknown_option_of_heads": (
        SURVEY + "heads: {offset: 3}",
        ["  heads.offset: unknown field, given 3", "allowed: offsets, fold_norm, vectors, composition"],
    ),
    "unknown_nouns": (SURVEY + "words: {nouns: verbs}", ["words.nouns: there is no prompt set 'verbs'", "nouns"]),
    "empty_sentence": (SURVEY + "words: {sentences: ['']}", ["  words.sentences.0: given ''"]),
    "set_called_sentences": (
        MODEL + "prompts: {sentences: {source: 'builtin:nouns'}}",
        ["prompts.sentences: this name is reserved for the set of words.sentences"],
    ),
    "sentences_in_a_set": (
        MODEL + "prompts: {goals: {source: 'words:sentences'}}",
        ["  prompts.goals.source: the kind `words` is reserved"],
    ),
    "set_without_source": (MODEL + "prompts: {goals: {limit: 3}}", ["  prompts.goals.source: is required"]),
    "set_is_no_mapping": (
        MODEL + "prompts: {goals: 'builtin:nouns'}",
        ["  prompts.goals: given 'builtin:nouns'", "must be a mapping"],
    ),
}


@each("case", BAD)
def test_message_names_field_value_and_what_is_allowed(tmp_path: Path, case: str) -> None:
    text, words = BAD[case]
    path = tmp_path / "spec.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        read_spec(path)
    message = str(caught.value)
    assert message.startswith(f"{path} is not a valid survey:\n")
    for part in words:
        assert part in message


@each(
    "text, line",
    [
        (capture("layers: [0, -1]"), r"  capture\.layers(\.1)?: given .*-1.*"),
        (capture("layers: some"), r"  capture\.layers: given 'some'; .*"),
        (prompts("positions: some"), r"  prompts\.goals\.positions: given 'some'; .*"),
    ],
)
def test_a_field_of_two_kinds_is_named_as_the_user_wrote_it(text: str, line: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text)
    for written in str(caught.value).splitlines()[1:]:
        assert re.fullmatch(line, written)


def test_every_fault_has_its_own_line() -> None:
    with pytest.raises(SpecError) as caught:
        parse("model: {id: a, dtype: int8, size: 3}\nprompts: []")
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["model.dtype", "model.size", "prompts"]


def test_a_long_value_is_shortened_in_the_message() -> None:
    with pytest.raises(SpecError) as caught:
        parse(prompts(f"template: {'x' * 5000}"))
    assert "xxx…" in str(caught.value)
    assert len(str(caught.value)) < 300


@each(
    "changes, line",
    [
        ({"prompts": {f"s{i}": {"source": "builtin:harmful"} for i in range(10**5)}}, "prompts: given 100,000 entries"),
        (
            {"contrasts": {f"c{i}": {"positive": "s", "negative": "s"} for i in range(10**5)}},
            "contrasts: given 100,000 entries",
        ),
    ],
)
def test_more_sets_or_contrasts_than_a_survey_can_have_are_counted_and_not_quoted(
    changes: dict[str, Any], line: str
) -> None:
    few = {"model": {"id": "smollm2-135m-instruct"}, "prompts": {"s": {"source": "builtin:harmful"}}}
    with pytest.raises(SpecError) as caught:
        parse_spec(few | changes)
    assert str(caught.value) == f"spec is not a valid survey:\n  {line}; allowed: at most 1,000"


def test_a_spec_error_exits_with_two() -> None:
    with pytest.raises(SpecError) as caught:
        parse(MODEL)
    assert caught.value.exit_code == 2


# The file itself


@each(
    "content, words",
    [
        (b"model: {id: a\nprompts: ]", ["cannot be read as YAML or JSON", "line 2"]),
        (b"model:\n\tid: a", ["cannot be read as YAML or JSON", "line 2"]),
        (b'{"model": {"id": "a"', ["cannot be read as YAML or JSON"]),
        (b"model: {id: a}\nmodel: {id: b}\nprompts: {a: {source: 'builtin:nouns'}}", ["model"]),
        (b"model: {id: a}\ncapture: {template_date: 2024-13-45}", ["month"]),
        (b"- model\n- prompts\n", ["must hold a mapping with the keys name, model, prompts"]),
        (b"just a text", ["must hold a mapping with the keys name, model, prompts"]),
        (b"", ["must hold a mapping with the keys name, model, prompts"]),
        (b"model: {id: \xff\xfe}", ["cannot read the spec"]),
    ],
)
def test_a_file_that_is_not_a_spec_is_refused_by_name(tmp_path: Path, content: bytes, words: list[str]) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(content)
    with pytest.raises(SpecError) as caught:
        read_spec(path)
    for part in [str(path), *words]:
        assert part in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"cannot read the spec .*nowhere\.yaml"):
        read_spec(tmp_path / "nowhere.yaml")


def test_a_folder_is_not_a_spec(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot read the spec"):
        read_spec(tmp_path)
