"""`theodolite spec check` reads the prompts that are here."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from theodolite.errors import PromptError
from theodolite_jobs.cli import app


def checked(folder: Path, *options: str, **changes: str):
    """Check a spec of two paired sets, one of a file of three prompts; `changes` are other sources of sets."""
    (folder / "three.txt").write_text("one\ntwo\nthree\n")
    sources = {"ours": "file:three.txt", "theirs": "builtin:harmless", **changes}
    spec = {
        "model": {"id": "smollm2-135m-instruct"},
        "prompts": {name: {"source": source, "limit": 3} for name, source in sources.items()},
        "contrasts": {"any": {"positive": "ours", "negative": "theirs", "paired": True}},
    }
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    return CliRunner().invoke(app, ["spec", "check", str(folder / "spec.yaml"), *options], catch_exceptions=True)


def test_it_counts_the_prompts(tmp_path):
    assert "; prompts: ours 3, theirs 3; not looked up (`theodolite plan` does): the model" in checked(tmp_path).stdout
    assert json.loads(checked(tmp_path, "--json").stdout)["prompts"] == {"ours": 3, "theirs": 3}


def test_prompts_on_the_hub_are_not_looked_up(tmp_path):
    assert "; prompts: ours 3; not looked up" in checked(tmp_path, theirs="hub:nobody/nothing").stdout
    assert checked(tmp_path, theirs="hub:nobody/nothing").stdout.rstrip().endswith("the model, the prompts of theirs")


def test_a_missing_file_is_named(tmp_path):
    error = checked(tmp_path, ours="file:four.txt").exception
    assert isinstance(error, PromptError)
    assert "four.txt cannot be read: it does not exist" in str(error)


def test_pairs_of_unequal_sets_are_refused(tmp_path):
    (tmp_path / "two.txt").write_text("one\ntwo\n")
    with pytest.raises(PromptError, match=r"contrasts\.any\.paired: ours has 2 prompts and theirs 3"):
        raise checked(tmp_path, ours="file:two.txt").exception
