"""GGUF files that cannot be converted or are converted already."""

from pathlib import Path

import gguf
import pytest
from support.errors import only_line

from theodolite.errors import ModelError
from theodolite.spec_parts import ModelSpec
from theodolite_jobs.models.convert.gguf import convert_gguf
from theodolite_jobs.models.source import fetch, resolve_source

WEIGHTS = "model.safetensors"


def write_gguf_of_unknown_architecture(path: Path) -> None:
    writer = gguf.GGUFWriter(str(path), "zork")
    writer.add_uint32("zork.block_count", 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("content", [b"", b"not at all", b"GGUF\x03\0\0\0 nonsense" * 10, None])
def test_a_gguf_file_that_cannot_be_read_leaves_no_files(tmp_path: Path, content: bytes | None) -> None:
    file, cache = tmp_path / "tiny.gguf", tmp_path / "cache"
    if content is None:
        write_gguf_of_unknown_architecture(file)
    else:
        file.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        fetch(resolve_source(ModelSpec(id="tiny.gguf"), tmp_path), cache)
    assert only_line(caught).startswith(f"cannot convert {file} from GGUF: ")
    assert list((cache / "gguf").iterdir()) == []


def test_a_converted_gguf_file_is_not_read_again(tmp_path: Path) -> None:
    done = tmp_path / "cache" / "done"
    done.mkdir(parents=True)
    (done / WEIGHTS).write_bytes(b"converted before")
    assert convert_gguf(tmp_path / "gone.gguf", done) == done
    assert (done / WEIGHTS).read_bytes() == b"converted before"
