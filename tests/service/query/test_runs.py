"""The spec of a run's results names only analyses that it can name."""

import pytest

from theodolite.groups import ANALYSES
from theodolite.query.runs import with_analyses
from theodolite.spec_file import parse_spec

PROMPTS = {name: {"source": f"builtin:{name}", "template": "none"} for name in ("harmful", "harmless")}


@pytest.mark.parametrize(
    ("changes", "left_out"),
    [
        ({"heads": {"vectors": 0}}, {"words"}),
        ({"contrasts": {}}, {"separation"}),
        ({"capture": {"keep": 5}, "gram": {"samples": 5}}, {"separation", "basis"}),
        ({}, set()),
    ],
)
def test_analyses_that_the_spec_cannot_name_are_left_out(changes, left_out):
    contrasts = {"refusal": {"positive": "harmful", "negative": "harmless"}}
    spec = parse_spec({"model": {"id": "m"}, "prompts": PROMPTS, "contrasts": contrasts, **changes})
    names = {"curves", "gram", "separation", "basis", "heads", "words", "moments"}
    named = with_analyses(spec, names).analyses
    assert named == [name for name in ANALYSES if name in names - left_out]
