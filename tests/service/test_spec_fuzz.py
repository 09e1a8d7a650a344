"""No spec file, however damaged or hostile, gives a traceback or occupies the machine."""

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.each import each

from theodolite.errors import SpecError
from theodolite.spec import SurveySpec
from theodolite.spec_file import read_spec

VALID = b"""
model: {id: smollm2-135m-instruct}
prompts:
  harmful: &set {source: "builtin:harmful", limit: 8}
  harmless: {source: "builtin:harmless", limit: 8, where: {kind: a}}
contrasts: {refusal: {positive: harmful, negative: harmless, paired: true}}
capture: {sites: [resid_pre], layers: [0, 1], positions: [-1]}
analyses: [curves, heads]
heads: {vectors: 2, offsets: [0, 1]}
"""
BOMB = "\n".join(
    ["a: &a [x, x, x, x, x, x, x, x, x]"]
    + [f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]" for old, new in zip("abcdefgh", "bcdefghi", strict=True)]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.dates()
KEYS = st.sampled_from([*SurveySpec.model_fields, "source", "limit", "id", "harmful"]) | SCALARS
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)


def read(path, content):
    """Read a spec, which is valid or refused with a message that has the file's name."""
    path.write_bytes(content)
    try:
        message = f"{path}: {read_spec(path).name}"
    except SpecError as error:
        message = str(error)
    assert str(path) in message
    assert len(message) < 10_000


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("specs") / "spec.yaml"


@settings(max_examples=4 * settings.default.max_examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_damaged_spec_is_valid_or_refused_by_name(path, data):
    content = bytearray(VALID)
    for _ in range(data.draw(st.integers(1, 6))):
        start = data.draw(st.integers(0, len(content)))
        stop = data.draw(st.integers(start, min(start + 8, len(content))))
        content[start:stop] = data.draw(
            st.binary(max_size=8)
            | st.sampled_from(
                [b"&a", b"*a", b"*set", b"!!python/name:os.system", b"\x00", b"\xef\xbb\xbf", b"- ", b": ", b"\n"]
            )
        )
    read(path, bytes(content))


@settings(max_examples=3 * settings.default.max_examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(KEYS, VALUES, max_size=6))
def test_any_mapping_is_valid_or_refused_by_name(path, mapping):
    read(path, yaml.safe_dump(mapping, allow_unicode=True).encode(errors="replace"))


@each(
    "content, reason",
    [
        (f"{BOMB}\nmodel: {{id: *i}}\nprompts: *i\n", "stand for more than"),
        ("model: &m {id: x, again: *m}\nprompts: {}\n", "contains itself"),
        (f"model: {{id: {'x' * 10_000_000}}}\n", "longer than a spec may be"),
        (f"model: {'[' * 5000}{']' * 5000}\n", "cannot be read as YAML or JSON"),
        ("model: {id: a}\nmodel: {id: b}\n", "model is given twice"),
        ("model: !!bool x\n", "cannot be read as YAML or JSON"),
        ("model: !!int ''\n", "cannot be read as YAML or JSON"),
        ("model: !!timestamp x\n", "cannot be read as YAML or JSON"),
        (f"model: {'1:' * 400}1.0\n", "cannot be read as YAML or JSON"),
        ("model: \x01\n", "position 7"),
        ("a: &a {b: 1}\nmodel:\n  <<: *a\n", "line 3, column 3: merge keys"),
        ("model:\n  id: a\n  id: b\n", "line 3, column 3: id is given twice"),
        ("model: !!python/object/apply:os.system [id]\n", "cannot be read as YAML or JSON"),
    ],
)
def test_a_hostile_spec_is_refused_with_the_reason(path, content, reason):
    path.write_text(content)
    with pytest.raises(SpecError, match=reason):
        read_spec(path)
