"""A small file that decodes to gigabytes is refused while its size is counted, and none of it is kept."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.each import each
from support.errors import only_line
from support.prompt_files import read, write

from theodolite.errors import PromptError
from theodolite_jobs.prompts import arrow_files, files

LONG = "a" * 2**20


def repeated(value: Any, count: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int16()), pa.array([value]))


def conversations(count: int) -> pa.ListArray:
    messages = pa.StructArray.from_arrays([repeated("user", count), repeated(LONG, count)], ["role", "content"])
    return pa.ListArray.from_arrays(pa.array(range(count + 1), pa.int32()), messages)


# Each file has less than 100,000 bytes.
BOMBS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "one text for 3,000 rows": (lambda: repeated(LONG, 3000), {}),
    "one text of Arrow's type dictionary": (lambda: repeated(LONG, 3000), {"store_schema": True}),
    "one message of this type": (lambda: conversations(3000), {"store_schema": True}),
    "one message for 3,000 conversations": (lambda: conversations(3000), {}),
    "texts that share their beginnings": (
        lambda: pa.array([LONG] * 300),
        {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"},
    ),
    "compressed texts": (lambda: pa.array([LONG] * 300), {"use_dictionary": False}),
    "a long text beside the prompt": (lambda: pa.array(["z" * 2 * 10**8, "z" * 2 * 10**8]), {}),
    "ten million numbers in a row": (
        lambda: pa.ListArray.from_arrays(pa.array([0, 10**7], pa.int32()), pa.array([0] * 10**7, pa.int8())),
        {},
    ),
}


@each("column, options", BOMBS.values())
def test_a_parquet_file_that_decodes_to_gigabytes_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: Callable[[], Any], options: dict[str, Any]
) -> None:
    file = tmp_path / "a.parquet"
    options = {"compression": "zstd", "write_statistics": False, "store_schema": False} | options
    pq.write_table(pa.table({"prompt": column()}), file, **options)
    assert file.stat().st_size < 100_000
    monkeypatch.setattr(pq.ParquetFile, "read", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(PromptError) as error:
        read(tmp_path, "a.parquet")
    allowed = max(2**26, 1000 * file.stat().st_size)
    assert f"a.parquet cannot be read: it decodes to more than {allowed:,} bytes" in only_line(error)
    assert "remove columns, or write it as .jsonl" in only_line(error)


def test_equal_texts_are_read_up_to_the_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_files, "MOST_DECODED_BYTES", 2_000_000)
    for count in (19, 20):
        pq.write_table(pa.table({"prompt": repeated("b" * 100_000, count)}), tmp_path / f"{count}.parquet")
    assert read(tmp_path, "19.parquet") == ["b" * 100_000] * 19
    with pytest.raises(PromptError, match="it decodes to more than 2,000,000 bytes"):
        read(tmp_path, "20.parquet")


def test_a_large_file_may_decode_to_several_times_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_files, "MOST_DECODED_BYTES", 1)
    texts = [f"prompt {number}" for number in range(2000)]
    pq.write_table(pa.table({"prompt": texts}), tmp_path / "a.parquet")
    assert read(tmp_path, "a.parquet") == texts


def test_a_gzip_bomb_is_refused_without_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "a.txt.gz", gzip.compress(b"a" * 10**6))
    monkeypatch.setattr(files, "MOST_DECODED_BYTES", 10**6 - 1)
    monkeypatch.setattr(gzip.GzipFile, "seek", lambda *_, **__: pytest.fail("it was read again"))
    with pytest.raises(PromptError, match=r"a\.txt\.gz cannot be read: it decompresses to more than 999999 bytes"):
        read(tmp_path, "a.txt.gz")


def test_ten_million_rows_in_a_few_bytes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"prompt": repeated("a", 10**7)}), tmp_path / "a.parquet", row_group_size=10**7)
    monkeypatch.setattr(pq.ParquetFile, "read", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(PromptError, match=r"it has 10,000,000 rows in \d[\d,]* bytes, which no prompts have"):
        read(tmp_path, "a.parquet")


@each("kind, row", [("txt", b"a\n"), ("csv", b"a\r"), ("json", b"[],"), ("jsonl", b'{"prompt":"a"}\n')])
def test_millions_of_rows_in_a_few_compressed_bytes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, row: bytes
) -> None:
    monkeypatch.setattr(gzip.GzipFile, "seek", lambda *_, **__: pytest.fail("it was read again"))
    write(tmp_path, f"a.{kind}.gz", gzip.compress(row * (2**22 + 1), 1))
    with pytest.raises(PromptError, match="it decompresses to more than 4,194,304 lines, lists and objects"):
        read(tmp_path, f"a.{kind}.gz")


def test_a_compressed_file_may_have_as_many_rows_as_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_DECODED_ROWS", 1)
    texts = [f"prompt {number}" for number in range(2000)]
    write(tmp_path, "a.txt.gz", gzip.compress("\n".join(texts).encode()))
    assert read(tmp_path, "a.txt.gz") == texts
