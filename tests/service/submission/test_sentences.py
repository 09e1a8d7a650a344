"""The spec of the survey of one sentence: the model of a run, and only what the trajectory needs."""

import numpy as np
import pytest
from pydantic import ValidationError
from support.finished_runs import adapter_facts, model_facts
from support.serving import SPEC
from support.stored import record_of

from theodolite.errors import SpecError
from theodolite.sites import Site
from theodolite.spec_file import parse_spec
from theodolite.submission.sentences import sentence_spec

RUN, SENTENCE = "tiny-0", "The capital of France is Paris"


def derived(spec=SPEC, sentence=SENTENCE, run_id=RUN, **model):
    arrays = {"nouns": {"resid_pre": np.ones((4, 1, 2, 8))}}
    record = record_of(arrays, shard_prompts=4, run_id=run_id, model=model_facts(**model))
    return sentence_spec(record.model_copy(update={"spec": parse_spec(spec)}), sentence)


def test_the_survey_has_the_model_of_the_run_and_only_the_sentence():
    model = {"id": "org/x", "revision": "abc", "dtype": "bfloat16", "attention": "eager", "weights": "random"}
    result = derived({**SPEC, "model": model, "words": {"sentences": ["Another"], "tokens": 7}}, kind="hub")
    assert result.model.model_dump(exclude_defaults=True) == model | {"revision": "sha256:0"}
    assert result.words.sentences == [SENTENCE]
    assert result.analyses == ["words"]
    assert (result.heads.vectors, result.words.tokens) == (1, 1)
    assert (result.contrasts, result.effects, [one.limit for one in result.prompts.values()]) == ({}, None, [1])
    assert result.sets["sentences"].positions == "all"


def test_the_path_has_the_states_of_the_run_at_all_layers():
    captured = {"sites": ["resid_pre", "resid_post", "head_out", "mlp_out"], "layers": [0, 3], "final": False}
    capture = derived({**SPEC, "capture": {**captured, "keep": 4, "positions": [-2]}}).capture
    assert capture.all_sites == (Site.RESID_PRE, Site.RESID_POST, Site.RESID_FINAL)
    assert (capture.layers, capture.positions, capture.keep) == ("all", [-1], None)
    assert derived({**SPEC, "capture": {"sites": ["mlp_out"]}}).capture.sites == [Site.RESID_PRE]


def test_the_same_sentence_in_the_same_model_is_the_same_survey():
    other = {**SPEC, "name": "label", "prompts": {"mine": {"source": "builtin:nouns"}}, "contrasts": {}}
    assert derived().digest() == derived(other, run_id="tiny-1").digest()
    assert derived().digest() != derived(sentence=f"{SENTENCE}.").digest()


def test_a_model_of_the_hub_has_the_revision_that_the_run_captured():
    result = derived({**SPEC, "model": {"id": "org/x", "revision": "main"}}, kind="hub")
    assert (result.model.id, result.model.revision) == ("org/x", "sha256:0")


def test_a_local_folder_is_not_taken_for_a_model_of_the_hub():
    with pytest.raises(SpecError, match="'org/x' was a local folder when the run was captured"):
        derived({**SPEC, "model": {"id": "org/x"}})
    for local in ("/models/org/x", "x"):
        assert derived({**SPEC, "model": {"id": local}}).model.id == local


def test_base_and_adapter_have_the_revisions_that_the_run_captured():
    facts = {"kind": "hub", "place": "org/x", "adapter": adapter_facts(kind="hub", place="org/lora")}
    pinned = {"id": "org/x", "revision": "sha256:0", "adapter": "org/lora", "adapter_revision": "a" * 40}
    for model in ({"id": "org/x", "adapter": "org/lora"}, {"id": "org/lora", "revision": "main"}):
        assert derived({**SPEC, "model": model}, **facts).model.model_dump(exclude_defaults=True) == pinned


def test_a_local_adapter_is_not_taken_for_one_of_the_hub():
    facts = {"kind": "hub", "place": "org/x", "adapter": adapter_facts()}
    with pytest.raises(SpecError, match=r"model\.adapter: 'my/lora' was a local folder"):
        derived({**SPEC, "model": {"id": "org/x", "adapter": "my/lora"}}, **facts)
    model = derived({**SPEC, "model": {"id": "/my/lora"}}, **facts).model
    assert (model.id, model.revision, model.adapter, model.adapter_revision) == ("org/x", "sha256:0", "/my/lora", None)


def test_the_label_names_the_run_and_the_start_of_the_sentence():
    assert derived().name == f"“{SENTENCE}” in the model of tiny-0"
    assert derived(sentence="a\n" * 100).name == f"“{'a ' * 29}a…” in the model of tiny-0"


@pytest.mark.parametrize("sentence", ["", "a" * 100_001])
def test_the_sentence_has_the_limits_of_a_spec(sentence):
    with pytest.raises(ValidationError):
        derived(sentence=sentence)
