"""A folder that a conversion wrote is believed only while it has the bytes that were written."""

import json

import pytest

from theodolite_jobs.models.convert.files import atomic_folder, create_once

CONTENT = {"config.json": b"{}", "part.safetensors": bytes(range(200)), "templates/one.jinja": b"hello"}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache" / "model"


@pytest.fixture
def create(folder):
    """Return a function that writes the folder if it has to, and returns whether it did."""
    calls = []

    def write():
        calls.append(1)
        with atomic_folder(folder) as staging:
            for name, content in CONTENT.items():
                (staging / name).parent.mkdir(exist_ok=True)
                (staging / name).write_bytes(content)

    def created():
        before = len(calls)
        assert create_once(folder, write) == folder
        assert {name: (folder / name).read_bytes() for name in CONTENT} == CONTENT
        return len(calls) > before

    return created


def test_a_whole_folder_is_written_once(create):
    assert create()
    assert not create()


@pytest.mark.parametrize("name", [*CONTENT, "checksums.json"])
def test_a_flipped_bit_is_noticed_in_each_file(folder, create, name, caplog):
    create()
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    assert create()
    assert caplog.messages == [f"{folder} is not as it was written; it is removed and created again"]
    assert not create()


@pytest.mark.parametrize("name", [*CONTENT, "checksums.json"])
def test_a_missing_file_is_noticed(folder, create, name):
    create()
    (folder / name).unlink()
    assert create()


def test_a_file_that_is_not_of_the_conversion_is_noticed(folder, create):
    create()
    (folder / "model-extra.safetensors").write_bytes(b"x")
    assert create()
    assert not (folder / "model-extra.safetensors").exists()


def test_the_folder_of_another_model_is_noticed(folder, create):
    create()
    other = folder.with_name("other")
    with atomic_folder(other) as staging:
        (staging / "config.json").write_text(json.dumps({"other": True}))
    folder.rename(folder.with_name("moved"))
    other.rename(folder)
    assert create()
