"""Uploads: prompt files in the store, named by the digest of their content."""

import pytest

from theodolite.errors import PromptError, StoreError
from theodolite.spec_file import parse_spec
from theodolite.store.uploads import is_uploaded, read_upload, store_upload, with_uploaded_texts

MODEL = {"id": "smollm2-135m-instruct"}


def test_the_same_content_has_one_name(tmp_path):
    source = store_upload(str(tmp_path), b"one\ntwo\n", "txt")
    assert store_upload(str(tmp_path), b"one\ntwo\n", "txt") == source
    assert [path.name for path in (tmp_path / "uploads").iterdir()] == [source.removeprefix("upload:")]
    assert read_upload(str(tmp_path), source.removeprefix("upload:")) == b"one\ntwo\n"


def test_the_type_of_a_compressed_upload_is_in_its_name(tmp_path):
    source = store_upload(str(tmp_path), b"packed", "csv.gz")
    assert source.endswith(".csv.gz")
    assert read_upload(str(tmp_path), source.removeprefix("upload:")) == b"packed"


def test_a_missing_upload_is_named(tmp_path):
    tmp_path.joinpath("uploads").mkdir()
    name = f"{'a' * 64}.csv"
    assert not is_uploaded(str(tmp_path), name)
    with pytest.raises(PromptError, match=f"has no upload {name}; upload the file again"):
        read_upload(str(tmp_path), name)


def test_a_damaged_upload_is_not_read(tmp_path):
    name = store_upload(str(tmp_path), b"one", "txt").removeprefix("upload:")
    (tmp_path / "uploads" / name).write_bytes(b"two")
    with pytest.raises(PromptError, match="is damaged"):
        read_upload(str(tmp_path), name)


def test_a_store_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "uploads").write_text("a file")
    with pytest.raises(StoreError):
        store_upload(str(tmp_path), b"one", "txt")


def test_texts_of_a_spec_become_uploads(tmp_path):
    texts = ["ein Satz", "zweite Zeile\nmit Umbruch", "💥"]
    prompts = {"mine": {"source": "inline", "texts": texts, "limit": 2}, "bad": {"source": "builtin:harmful"}}
    spec = parse_spec({"model": MODEL, "prompts": prompts})
    stored = with_uploaded_texts(spec, str(tmp_path))
    assert stored.prompts["bad"] == spec.prompts["bad"]
    assert stored.prompts["mine"].limit == 2
    assert stored.digest() == with_uploaded_texts(spec).digest()
    assert stored == with_uploaded_texts(stored)
    assert parse_spec(stored.model_dump(mode="json", exclude_unset=True)) == stored
    assert "Satz" not in stored.model_dump_json()
    name = stored.prompts["mine"].source.removeprefix("upload:")
    assert name.endswith(".json")
    assert "zweite Zeile\\nmit Umbruch" in read_upload(str(tmp_path), name).decode()


def test_a_spec_without_texts_stays_the_same():
    spec = parse_spec({"model": MODEL, "prompts": {"bad": {"source": "builtin:harmful"}}})
    assert with_uploaded_texts(spec) is spec
