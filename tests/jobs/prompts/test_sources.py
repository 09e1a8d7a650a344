"""Reading prompt sets: every kind of file, and the order of `where`, `draw` and `limit`."""

import gzip
import json
from pathlib import Path

import fastparquet
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict
from sklearn.model_selection import train_test_split
from support.each import each
from support.prompt_files import read, write

from theodolite.store.tables import encode_table
from theodolite_jobs.prompts.files import read_file


def write_numbered(folder: Path, count: int) -> list[str]:
    texts = [f"prompt {number}" for number in range(count)]
    write(folder, "numbered.txt", "\n".join(texts))
    return texts


def write_kinds(folder: Path) -> None:
    rows = [{"text": f"prompt {number}", "kind": "odd" if number % 2 else "even"} for number in range(20)]
    write(folder, "kinds.json", json.dumps(rows))


# The kinds of file


def test_csv_reads_quoted_commas_quotes_and_line_ends(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", 'prompt\r\n"Hello, world"\r\n"Say ""yes"""\r\n"two\nlines"\r\n')
    assert read(tmp_path, "a.csv") == ["Hello, world", 'Say "yes"', "two\nlines"]


@each(
    "file, content",
    [
        ("a.csv", "prompt\nfirst\nsecond\n"),
        ("a.txt", "first\nsecond\n"),
        ("a.jsonl", '{"prompt": "first"}\n{"prompt": "second"}\n'),
        ("a.json", '["first", "second"]'),
    ],
)
def test_byte_order_mark_is_not_part_of_a_prompt_or_column(tmp_path: Path, file: str, content: str) -> None:
    write(tmp_path, file, b"\xef\xbb\xbf" + content.encode())
    assert read(tmp_path, file, column="prompt") == ["first", "second"]


def test_jsonl_reads_objects_and_strings_and_skips_blank_lines(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", '{"prompt": "Größe"}\n\n"second"\n   \n{"prompt": "two\\nlines"}\n')
    assert read(tmp_path, "a.jsonl") == ["Größe", "second", "two\nlines"]


def test_jsonl_rows_end_at_newlines_only(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", json.dumps({"prompt": "one\u2028line\x85 of text"}, ensure_ascii=False) + "\n")
    assert read(tmp_path, "a.jsonl") == ["one\u2028line\x85 of text"]


def test_txt_rows_end_at_newlines_only(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "one\u2028line\x0c of text\nsecond\r\n")
    assert read(tmp_path, "a.txt") == ["one\u2028line\x0c of text", "second"]


@each("content", ['["first", "second"]', '[{"goal": "first"}, {"goal": "second"}]'])
def test_json_reads_strings_and_objects(tmp_path: Path, content: str) -> None:
    write(tmp_path, "a.json", content)
    assert read(tmp_path, "a.json") == ["first", "second"]


def test_parquet_reads_texts_numbers_and_missing_values(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "goal": ["first", "second", "third"],
            "input": [None, "x", ""],
            "level": [1, 2, 2],
            "score": [0.5, None, 2],
        }
    )
    fastparquet.write(str(tmp_path / "a.parquet"), frame)
    assert read(tmp_path, "a.parquet", column="goal") == ["first", "second", "third"]
    assert read(tmp_path, "a.parquet", column="goal", where={"level": 2}) == ["second", "third"]
    assert read(tmp_path, "a.parquet", column="goal", where={"input": ""}) == ["first", "third"]
    assert read(tmp_path, "a.parquet", column="goal", where={"input": None}) == ["first", "third"]
    assert read(tmp_path, "a.parquet", column="goal", where={"score": 0.5}) == ["first"]


@each("file", ["a.csv", "a.txt", "a.jsonl"])
def test_blank_lines_at_the_end_are_no_prompts(tmp_path: Path, file: str) -> None:
    lines = {"a.csv": ["prompt", "first", "second"], "a.txt": ["first", "second"], "a.jsonl": ['"first"', '"second"']}
    write(tmp_path, file, "\r\n".join([*lines[file], "", "", ""]))
    assert read(tmp_path, file) == ["first", "second"]


@each("header", ["prompt", "Text", "goal", "instruction"])
def test_a_common_header_of_one_column_needs_no_column_in_the_spec(tmp_path: Path, header: str) -> None:
    write(tmp_path, "a.csv", f"{header}\nfirst\n")
    assert read(tmp_path, "a.csv") == ["first"]


def test_another_header_of_one_column_is_named_in_the_spec(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", "My questions; all\nfirst\n")
    assert read(tmp_path, "a.csv", column="My questions; all") == ["first"]


def test_csv_reads_long_cells_and_columns_without_a_name(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", f"prompt,,\n{'long ' * 30_000},,\n")
    assert read(tmp_path, "a.csv", column="prompt") == ["long " * 30_000]


def test_the_folder_of_a_parquet_file_is_no_column(tmp_path: Path) -> None:
    (tmp_path / "kind=a").mkdir()
    write(tmp_path, "kind=a/a.parquet", encode_table(pd.DataFrame({"goal": ["first"]})))
    assert read(tmp_path, "kind=a/a.parquet") == ["first"]


def test_txt_has_one_prompt_per_line(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "first, with comma\r\n  second \nGröße")
    assert read(tmp_path, "a.txt") == ["first, with comma", "  second ", "Größe"]


def test_absolute_path_ignores_the_spec_folder(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "first\n")
    assert read(Path("/nowhere"), str(tmp_path / "a.txt")) == ["first"]


def test_relative_path_starts_at_the_spec_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "specs" / "data").mkdir(parents=True)
    write(tmp_path / "specs" / "data", "a.txt", "in the spec folder\n")
    (tmp_path / "data").mkdir()
    write(tmp_path / "data", "a.txt", "in the working directory\n")
    monkeypatch.chdir(tmp_path)
    assert read(tmp_path / "specs", "data/a.txt") == ["in the spec folder"]


TYPES = {
    "csv": 'prompt,kind\r\n"first, ""a""",x\r\n"two\nlines",y\r\n',
    "tsv": 'prompt\tkind\r\n"first, ""a"""\tx\r\n"two\nlines"\ty\r\n',
    "jsonl": '{"prompt": "first, \\"a\\"", "kind": "x"}\n{"prompt": "two\\nlines", "kind": "y"}\n',
    "ndjson": '{"prompt": "first, \\"a\\"", "kind": "x"}\r\n{"prompt": "two\\nlines", "kind": "y"}\r\n',
    "json": '[{"prompt": "first, \\"a\\"", "kind": "x"}, {"prompt": "two\\nlines", "kind": "y"}]',
}


@each("end", ["", ".gz", ".GZ"])
@each("kind", TYPES)
def test_a_table_of_every_type_is_read_also_compressed(tmp_path: Path, kind: str, end: str) -> None:
    content = b"\xef\xbb\xbf" + TYPES[kind].encode()
    write(tmp_path, f"a.b.{kind}{end}", gzip.compress(content) if end else content)
    assert read(tmp_path, f"a.b.{kind}{end}", column="prompt") == ['first, "a"', "two\nlines"]
    assert read(tmp_path, f"a.b.{kind}{end}", column="prompt", where={"kind": "y"}) == ["two\nlines"]


def test_a_compressed_file_may_have_several_parts(tmp_path: Path) -> None:
    write(tmp_path, "a.txt.gz", gzip.compress(b"first\n") + gzip.compress(b"second\n"))
    assert read(tmp_path, "a.txt.gz") == ["first", "second"]


def test_a_tsv_cell_may_contain_commas_and_quotation_marks(tmp_path: Path) -> None:
    write(tmp_path, "a.tsv", 'prompt\tkind\nHello, "world"\tx\n')
    assert read(tmp_path, "a.tsv", column="prompt") == ['Hello, "world"']


def test_a_saved_dataset_is_read_in_its_order(tmp_path: Path) -> None:
    goals = Dataset.from_dict({"goal": ["a", "b", "c"], "score": [1.0, float("nan"), None]})
    goals.select([2, 0]).with_format("numpy", columns=["score"]).save_to_disk(tmp_path / "saved", num_shards=2)
    assert read(tmp_path, "saved", column="goal") == ["c", "a"]
    goals.save_to_disk(tmp_path / "whole")
    assert read(tmp_path, "whole", column="goal", where={"score": None}) == ["b", "c"]


def test_a_saved_dataset_of_splits_is_read_at_its_split(tmp_path: Path) -> None:
    splits = {name: Dataset.from_dict({"goal": [name]}) for name in ("train", "test")}
    DatasetDict(splits).save_to_disk(tmp_path / "saved.csv")
    assert read(tmp_path, "saved.csv") == ["train"]
    DatasetDict(splits).save_to_disk(tmp_path / "saved")
    assert read(tmp_path, "saved", split="test") == ["test"]
    one = Dataset.from_dict({"goal": ["held out"]}, split="test")
    one.save_to_disk(tmp_path / "one")
    assert read(tmp_path, "one") == read(tmp_path, "one", split="test") == ["held out"]


def test_cells_of_tables_are_plain_objects(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    table = pa.table({"chat": [chat], "tags": [["a", "b"]], "one": [chat[0]], "count": pa.array([2**53 + 1])})
    pq.write_table(table, tmp_path / "a.parquet")
    Dataset(table).save_to_disk(tmp_path / "saved")
    row = {"chat": chat, "tags": ["a", "b"], "one": chat[0], "count": 2**53 + 1}
    assert read_file("goals", tmp_path / "a.parquet") == read_file("goals", tmp_path / "saved") == {"row 0": row}


def test_values_of_different_types_are_those_of_the_original_rows(tmp_path: Path) -> None:
    """The package datasets stores them as texts of JSON, in folders and in Parquet files."""
    chats = [[{"role": "user", "content": "a\nb", "name": ""}, {"role": "assistant", "content": ["c"]}], None]
    rows = {"chat": chats, "kind": [{"x": 1}, "y"], "one": [{"two": "a"}, {"two": [1]}]}
    dataset = Dataset.from_dict(rows, on_mixed_types="use_json")
    dataset.save_to_disk(tmp_path / "saved")
    dataset.to_parquet(tmp_path / "a.parquet")
    expected = {f"row {index}": {name: values[index] for name, values in rows.items()} for index in range(2)}
    assert read_file("goals", tmp_path / "a.parquet") == read_file("goals", tmp_path / "saved") == expected


def test_large_numbers_beside_missing_ones_stay_exact(tmp_path: Path) -> None:
    numbers = pa.array([2**53, 2**53 + 1, None])
    pq.write_table(pa.table({"goal": ["a", "b", "c"], "id": numbers}), tmp_path / "a.parquet")
    assert read(tmp_path, "a.parquet", column="goal", where={"id": 2**53 + 1}) == ["b"]


def test_the_index_of_pandas_is_a_column_only_with_a_name(tmp_path: Path) -> None:
    frame = pd.DataFrame({"goal": ["a", "b", "c"]})
    frame[frame["goal"] != "b"].to_parquet(tmp_path / "a.parquet", engine="pyarrow")
    assert read(tmp_path, "a.parquet") == ["a", "c"]
    frame.set_index("goal").assign(level=1).to_parquet(tmp_path / "b.parquet", engine="pyarrow")
    assert read(tmp_path, "b.parquet", column="goal") == ["a", "b", "c"]


# Which rows, in which order


def test_prompts_stay_in_the_order_of_the_file(tmp_path: Path) -> None:
    texts = write_numbered(tmp_path, 30)
    assert read(tmp_path, "numbered.txt") == texts


def test_limit_takes_the_first_prompts(tmp_path: Path) -> None:
    texts = write_numbered(tmp_path, 30)
    assert read(tmp_path, "numbered.txt", limit=7) == texts[:7]


def test_limit_past_the_end_takes_all_prompts(tmp_path: Path) -> None:
    texts = write_numbered(tmp_path, 3)
    assert read(tmp_path, "numbered.txt", limit=100) == texts


@each("test_size, random_state", [(0.2, 42), (0.5, 0), (0.33, 7)])
def test_draw_returns_the_train_part_in_its_order(tmp_path: Path, test_size: float, random_state: int) -> None:
    texts = write_numbered(tmp_path, 101)
    train, test = train_test_split(texts, test_size=test_size, random_state=random_state)
    drawn = read(tmp_path, "numbered.txt", draw={"test_size": test_size, "random_state": random_state})
    assert drawn == train
    assert drawn != texts[: len(drawn)]
    assert not set(drawn) & set(test)


def test_limit_comes_after_draw(tmp_path: Path) -> None:
    texts = write_numbered(tmp_path, 50)
    train, _ = train_test_split(texts, test_size=0.2, random_state=1)
    assert read(tmp_path, "numbered.txt", draw={"test_size": 0.2, "random_state": 1}, limit=5) == train[:5]


def test_skip_comes_after_draw_and_before_limit(tmp_path: Path) -> None:
    texts = write_numbered(tmp_path, 50)
    train, _ = train_test_split(texts, test_size=0.2, random_state=1)
    draw = {"test_size": 0.2, "random_state": 1}
    assert read(tmp_path, "numbered.txt", draw=draw, skip=3, limit=5) == train[3:8]
    assert read(tmp_path, "numbered.txt", skip=48) == texts[48:]


def test_where_filters_before_limit(tmp_path: Path) -> None:
    write_kinds(tmp_path)
    kept = read(tmp_path, "kinds.json", column="text", where={"kind": "odd"}, limit=3)
    assert kept == ["prompt 1", "prompt 3", "prompt 5"]


def test_where_filters_before_draw(tmp_path: Path) -> None:
    write_kinds(tmp_path)
    odd = [f"prompt {number}" for number in range(1, 20, 2)]
    train, _ = train_test_split(odd, test_size=0.3, random_state=3)
    draw = {"test_size": 0.3, "random_state": 3}
    assert read(tmp_path, "kinds.json", column="text", where={"kind": "odd"}, draw=draw) == train


def test_where_requires_every_column_to_match(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", "text,kind,level\na,x,1\nb,x,2\nc,y,2\n")
    assert read(tmp_path, "a.csv", column="text", where={"kind": "x", "level": 2}) == ["b"]


@each(
    "file, content",
    [
        ("a.csv", "text,input,level\na,,1\nb,more,2\nc,,10\n"),
        (
            "a.json",
            '[{"text": "a", "input": null, "level": 1}, {"text": "b", "input": "more", "level": 2},'
            ' {"text": "c", "input": "", "level": 10}]',
        ),
    ],
)
def test_where_compares_whole_values_of_text_and_number(tmp_path: Path, file: str, content: str) -> None:
    write(tmp_path, file, content)
    assert read(tmp_path, file, column="text", where={"input": ""}) == ["a", "c"]
    assert read(tmp_path, file, column="text", where={"input": None}) == ["a", "c"]
    assert read(tmp_path, file, column="text", where={"level": 1}) == ["a"]
    assert read(tmp_path, file, column="text", where={"input": "more"}) == ["b"]


def test_an_empty_prompt_outside_the_selection_is_no_error(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "first\nsecond\n\nfourth\n")
    assert read(tmp_path, "a.txt", limit=2) == ["first", "second"]
