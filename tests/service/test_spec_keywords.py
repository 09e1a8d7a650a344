"""A spec from keywords is that of the file with the same sections; what is not understood is refused by name."""

import pandas as pd
import pytest
from datasets import Dataset
from support.each import each

from theodolite.errors import SpecError
from theodolite.spec_file import parse_spec
from theodolite.spec_keywords import spec_of_keywords

MODEL = "smollm2-135m-instruct"
TEXTS = ["Name a city.", "Name a river."]
INLINE = {"source": "inline", "texts": TEXTS}


@each("column", [TEXTS, tuple(TEXTS), pd.Series(TEXTS, index=[7, 9]), Dataset.from_dict({"x": TEXTS})["x"]])
def test_two_lists_are_two_sets_with_a_contrast(column):
    spec, _ = spec_of_keywords(model=MODEL, positive=column, negative="builtin:everyday", paired=True)
    assert spec == parse_spec(
        {
            "model": {"id": MODEL},
            "prompts": {"positive": INLINE, "negative": {"source": "builtin:everyday"}},
            "contrasts": {"main": {"positive": "positive", "negative": "negative", "paired": True}},
        }
    )


def test_keywords_replace_the_sections_of_a_spec(tmp_path):
    (tmp_path / "own.yaml").write_text(f"model: {{id: {MODEL}}}\nprompts: {{a: {{source: file:a.csv}}}}\n")
    spec, folder = spec_of_keywords(tmp_path / "own.yaml", prompts={"b": TEXTS}, analyses=["curves"])
    assert (folder, [*spec.prompts], spec.analyses) == (tmp_path, ["b"], ["curves"])
    again, _ = spec_of_keywords(spec, name="again", positive=TEXTS, negative=TEXTS)
    assert ([*again.prompts], again.name, again.analyses) == (["b", "positive", "negative"], "again", ["curves"])
    conversation = [{"role": "user", "content": "Hello."}]
    assert spec_of_keywords({"model": {"id": MODEL}}, prompts={"c": [conversation]})[0].prompts["c"].texts


@each(
    "given, reason",
    [
        ({"positive": TEXTS}, "positive: a contrast has two sets"),
        ({"prompts": {"a": TEXTS}, "paired": True}, "paired: only the contrast of positive and negative has it"),
        ({"prompts": {"a": pd.DataFrame({"x": TEXTS, "y": TEXTS})}}, "a table with the columns x, y; give one column"),
        ({"prompts": {"a": Dataset.from_dict({"x": TEXTS})}}, "a table with the columns x; give one column"),
        ({"prompts": {"a": 3}}, "prompts.a: given 3; allowed: a list"),
        ({"prompts": {"a": pd.Series(["x", None])}}, "prompts.a.texts.1: given"),
        ({"prompts": {"a": TEXTS}, "analysis": ["curves"]}, "analysis: unknown field"),
        ({"prompts": TEXTS}, "prompts: given"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(given, reason):
    with pytest.raises(SpecError, match=reason):
        spec_of_keywords(model=MODEL, **given)
