"""Errors of prompt files name the set, the file and the row."""

import gzip
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict
from support.each import each
from support.errors import only_line
from support.prompt_files import read, write

from theodolite.errors import PromptError
from theodolite.spec_parts import PromptSetSpec
from theodolite.store.tables import encode_table
from theodolite_jobs.prompts import files
from theodolite_jobs.prompts.sources import read_prompts

BAD = {
    "missing_file": (None, "gone.csv", {}, ["goals.source", "gone.csv cannot be read: it does not exist"]),
    "unknown_suffix": (
        "x",
        "a.xlsx",
        {},
        ["goals.source", "a.xlsx", ".csv, .tsv, .jsonl, .ndjson, .json, .txt, .parquet, .csv.gz, .tsv.gz"],
    ),
    "no_suffix": ("x", "goals", {}, ["goals.source", "no supported suffix; allowed: .csv, .tsv", "save_to_disk"]),
    "empty_txt": ("", "a.txt", {}, ["prompts.goals", "file:a.txt is empty"]),
    "empty_csv": ("", "a.csv", {}, ["prompts.goals", "file:a.csv is empty"]),
    "empty_parquet": (b"", "a.parquet", {}, ["goals.source", "damaged or incomplete"]),
    "csv_of_a_header": ("prompt\n", "a.csv", {}, ["file:a.csv is empty or has only its first line", "the header"]),
    "empty_json_list": ("[]", "a.json", {}, ["prompts.goals", "file:a.json is empty"]),
    "missing_column": (
        "goal,kind\na,b\n",
        "a.csv",
        {"column": "text"},
        ["goals.column", "no column 'text'", "allowed: goal, kind"],
    ),
    "several_columns": ("goal,kind\na,b\n", "a.csv", {}, ["goals.column", "must name the one", "allowed: goal, kind"]),
    "where_of_missing_column": (
        "goal,kind\na,b\n",
        "a.csv",
        {"column": "goal", "where": {"level": 1}},
        ["goals.where", "no column 'level'", "allowed: goal, kind"],
    ),
    "where_keeps_nothing": (
        "goal,kind\na,b\n",
        "a.csv",
        {"column": "goal", "where": {"kind": "c"}},
        [
            "goals.where",
            "none of the 1 rows has the requested values; kind: 0 rows have it, and the column has 1 values",
        ],
    ),
    "where_keeps_no_row_of_both": (
        "goal,kind,part\na,b,c\nd,e,f\n",
        "a.csv",
        {"column": "goal", "where": {"kind": "b", "part": "f"}},
        ["kind: 1 rows have it, and the column has 2 values; part: 1 rows", "no row has all of them; compare the spec"],
    ),
    "empty_prompt": ("first\n\nthird\n", "a.txt", {}, ["prompts.goals", "a.txt, line 2): prompt 1 is empty"]),
    "blank_prompt": ('["a", "b", " \\t\\n"]', "a.json", {}, ["prompts.goals", "prompt 2 is empty"]),
    "number_for_prompt": (
        '[{"n": "a"}, {"n": 5}]',
        "a.json",
        {},
        ["prompts.goals", "prompt 1", "is of type int; a prompt must be a text"],
    ),
    "null_for_prompt": (
        '[{"n": "a"}, {"n": null}]',
        "a.json",
        {},
        ["prompts.goals", "a.json, row 1): prompt 1", "is missing (null)"],
    ),
    "draw_leaves_nothing": (
        "only\n",
        "a.txt",
        {"draw": {"test_size": 0.5, "random_state": 0}},
        ["goals.draw"],
    ),
    "skip_leaves_nothing": ("a\nb\n", "a.txt", {"skip": 2}, ["goals.skip: 2 would leave out all 2", "1 or less"]),
    "corrupt_json": ('["a", ', "a.json", {}, ["goals.source", "a.json", "cannot be read: it is not valid JSON"]),
    "corrupt_jsonl": ('{"a": "b"}\n\n{"a": ', "a.jsonl", {}, ["goals.source", "a.jsonl", "line 3 is not valid JSON"]),
    "corrupt_parquet": (b"PAR1 nothing", "a.parquet", {}, ["goals.source", "a.parquet", "damaged or incomplete"]),
    "parquet_of_text": ("prompt\na\n", "a.parquet", {}, ["goals.source", "it is no Parquet file"]),
    "csv_not_utf8": (
        "prompt\na\né\n".encode("latin-1"),
        "a.csv",
        {},
        ["goals.source", "a.csv", "line 3 is not UTF-8, because of the byte 0xe9; save it as UTF-8"],
    ),
    "utf16": ("prompt\na\n".encode("utf-16"), "a.csv", {}, ["goals.source", "it is UTF-16", "save it as UTF-8"]),
    "utf16_without_a_mark": ("a\nb\n".encode("utf-16-le"), "a.txt", {}, ["line 1 has a NUL character", "UTF-16"]),
    "nul": ("prompt\na\nb\0\n", "a.csv", {}, ["goals.source", "line 3 has a NUL character; remove it"]),
    "json_of_an_object": ('{"a": "b"}', "a.json", {}, ["goals.source", "a list of strings or of objects"]),
    "json_of_numbers": ('["a", 2]', "a.json", {}, ["goals.source", "row 1 is of type int", "a list of messages"]),
    "jsonl_of_numbers": ('"a"\n2', "a.jsonl", {}, ["goals.source", "line 2 is of type int", "a list of messages"]),
    "json_named_jsonl": ('["a",\n"b"]', "a.jsonl", {}, ["line 1 begins a list", "needs the suffix .json"]),
    "jsonl_named_json": ('"a"\n"b"\n', "a.json", {}, ["Extra data: line 2", "needs the suffix .jsonl"]),
    "json_key_twice": ('[{"a": "b", "a": "c"}]', "a.json", {}, ["goals.source", "has the column a twice"]),
    "jsonl_key_twice": ('"a"\n{"a": "b", "a": "c"}', "a.jsonl", {}, ["goals.source", "line 2", "the column a twice"]),
    "jsonl_key_missing": (
        "\n" + '{"goal": "a"}\n' * 7 + '{"text": "b"}\n' + '{"goal": "c"}\n',
        "a.jsonl",
        {"column": "goal"},
        ["goals.column", "1 of 9 rows have no 'goal', the first is line 9"],
    ),
    # Files that would lose or change a prompt, or shift the pairs of two sets.
    "csv_without_header": (
        "Write a story.\nTell a joke.\n",
        "a.csv",
        {},
        ["goals.column", "(a name of 14 characters) may be a prompt", "add the line `prompt` above it"],
    ),
    "csv_of_words_without_header": ("dog\ncat\n", "a.csv", {}, ["goals.column", "dog may be a prompt", "set column"]),
    "csv_without_header_of_a_named_column": (
        "Write a story.\nTell a joke.\n",
        "a.csv",
        {"column": "prompt"},
        ["no column 'prompt'; allowed: (a name of 14 characters)", "it looks like a prompt: add a header"],
    ),
    "csv_without_header_of_two_columns": (
        "Write a story.,x\nTell a joke.,y\n",
        "a.csv",
        {},
        ["goals.column", "2 columns", "it looks like a prompt: add a header"],
    ),
    "csv_blank_line": ("prompt\na\n\nb\n", "a.csv", {}, ["goals.source", "line 3 is blank"]),
    "csv_blank_line_of_two_columns": ("p,k\na,x\n\nb,y\n", "a.csv", {"column": "p"}, ["line 3 is blank"]),
    "csv_blank_first_line": ("\nprompt\na\n", "a.csv", {}, ["goals.source", "line 1 is blank", "the header"]),
    "csv_empty_cell": ('prompt\n"a\nb"\n""\n', "a.csv", {}, ["a.csv, line 4): prompt 1 is empty"]),
    "csv_column_twice": ("goal,goal\na,b\n", "a.csv", {"column": "goal"}, ["the header has the column goal twice"]),
    "csv_quote_not_closed": (
        'prompt\n"a\nb"\n"c\nd\n',
        "a.csv",
        {},
        ["goals.source", "the row that begins in line 4 has a quotation mark that is not closed"],
    ),
    "csv_quote_closed_by_a_later_cell": ('p,k\n"a,x\nb,y\n"c",z\n', "a.csv", {"column": "p"}, ["begins in line 2"]),
    "csv_quote_not_doubled": ('prompt\n"Say "yes" now"\n', "a.csv", {}, ["begins in line 2", "double"]),
    "csv_of_semicolons": ("id;prompt\n1;a, b\n", "a.csv", {"column": "prompt"}, ["semicolons", "id, prompt", "commas"]),
    "csv_of_quoted_semicolons": ('"id";"prompt"\n1;"a"\n', "a.csv", {}, ["goals.source", "semicolons"]),
    "csv_of_tabs": ("id\tprompt\r\n1\ta\r\n", "a.csv", {}, ["tabs", "id, prompt", "end its name with .tsv"]),
    "tsv_of_commas": ("id,prompt\r\n1,a\r\n", "a.tsv", {}, ["commas", "id, prompt", "end its name with .csv"]),
    "tsv_of_semicolons": ("id;prompt\r\n1;a\r\n", "a.tsv", {}, ["semicolons", "save it with tabs"]),
    "tsv_without_header": ("Tell a joke.\nWhy?\n", "a.tsv", {}, ["first line of a .tsv file is its header"]),
    "tsv_column_twice": ("goal\tgoal\na\tb\n", "a.tsv", {"column": "goal"}, ["the header has the column goal twice"]),
    "tsv_tab_in_a_cell": ("goal\tkind\na\tb\tc\n", "a.tsv", {"column": "goal"}, ["line 2", "3 and 2 cells", "tabs"]),
    "gzip_without_its_suffix": (
        gzip.compress(b"a\n"),
        "a.txt",
        {},
        ["compressed with gzip; end its name with .txt.gz"],
    ),
    "text_with_the_suffix_of_gzip": ("a\n", "a.txt.gz", {}, ["a.txt.gz cannot be read: it is no gzip file"]),
    "gzip_cut_off": (gzip.compress(b"a\nb\n" * 99)[:-9], "a.txt.gz", {}, ["a.txt.gz", "damaged or incomplete"]),
    "gzip_with_another_checksum": (gzip.compress(b"a\n")[:-8] + bytes(8), "a.txt.gz", {}, ["damaged or incomplete"]),
    "gzip_of_latin_1": (gzip.compress("prompt\né\n".encode("latin-1")), "a.csv.gz", {}, ["line 2 is not UTF-8"]),
    "csv_gzip_of_tabs": (gzip.compress(b"id\tprompt\n1\ta\n"), "a.csv.gz", {}, ["end its name with .tsv"]),
    "where_of_a_list": (
        '[{"p": "a", "k": ["x"]}]',
        "a.json",
        {"column": "p", "where": {"k": "x"}},
        ["goals.where", "column 'k' has a list in row 0", "can be compared"],
    ),
    # A row with more cells than the header has: an unquoted comma would cut the prompt short.
    "csv_comma_in_first_row": ("prompt\nHello, world\nbye\n", "a.csv", {}, ["prompts.goals"]),
    "csv_comma_in_later_row": (
        "prompt\nbye\nHello, world\n",
        "a.csv",
        {},
        ["line 3 and the header (line 1) have 2 and 1 cells", "quote cells"],
    ),
    "csv_comma_in_named_column": (
        "prompt\nHello, world\nbye\n",
        "a.csv",
        {"column": "prompt"},
        ["prompts.goals"],
    ),
    "objects_of_different_keys": (
        '{"prompt": "a"}\n{"text": "b"}\n',
        "a.jsonl",
        {},
        ["prompts.goals"],
    ),
    # Half of a surrogate pair is not valid Unicode: it cannot be hashed or tokenized.
    "half_a_surrogate_pair": (
        '["whole", "half \\ud83d"]',
        "a.json",
        {},
        ["prompts.goals (file:a.json, row 1): prompt 1", "half of a surrogate pair (\\ud83d) at index 5"],
    ),
    # As a raw NUL, which is refused too.
    "nul_by_an_escape": (
        '{"prompt": "a"}\n{"prompt": "a\\u0000b"}\n',
        "a.jsonl",
        {},
        ["prompts.goals (file:a.jsonl, line 2): prompt 1 has a NUL character (\\u0000) at index 1; remove it"],
    ),
    "deep_lists": ("[" * 100_000, "a.json", {}, ["hundreds deep; flatten it"]),
    "deep_objects": ('"a"\n' + '{"a":' * 100_000, "a.jsonl", {}, ["line 2: it has lists or objects", "hundreds deep"]),
    "a_number_of_5000_digits": ('{"a": ' + "1" * 5_000 + "}", "a.jsonl", {}, ["a.jsonl", "line 1"]),
    "not_a_number": ("[NaN, Infinity]", "a.json", {}, ["row 0 is of type float"]),
    "lines_of_two_kinds": (
        '{"text": "a"}\n"b"\n',
        "a.jsonl",
        {},
        ["line 1 is an object without the key prompt, and line 2 is a text or a list"],
    ),
    "rows_of_two_kinds": ('["b", {"prompt": "c"}, {"text": "a"}]', "a.json", {}, ["row 2 is an object", "row 0 is a"]),
    "object_without_keys": ("[{}]", "a.json", {}, ["prompts.goals"]),
}


@each("case", BAD)
def test_error_names_the_set_and_the_fault(tmp_path: Path, case: str) -> None:
    content, file, settings, words = BAD[case]
    if content is not None:
        write(tmp_path, file, content)
    with pytest.raises(PromptError) as caught:
        read(tmp_path, file, **settings)
    for part in words:
        assert part in only_line(caught)


def test_a_damaged_parquet_file_is_an_error_of_one_line(tmp_path: Path) -> None:
    whole = encode_table(pd.DataFrame({"prompt": [f"prompt {number}" for number in range(50)]}))
    for start in range(4, len(whole), 5):  # pages, then the footer
        write(tmp_path, "a.parquet", whole[:4] + whole[start + 5 :])
        with pytest.raises(PromptError) as caught:
            read(tmp_path, "a.parquet")
        assert "a.parquet cannot be read: it is no Parquet file, or it is damaged" in only_line(caught)


def test_a_parquet_file_with_a_column_twice_or_a_null_is_an_error(tmp_path: Path) -> None:
    texts = pa.array(["first", None])
    pq.write_table(pa.table([texts, texts], names=["goal", "goal"]), tmp_path / "a.parquet")
    with pytest.raises(PromptError, match="the file has the column goal twice"):
        read(tmp_path, "a.parquet", column="goal")
    pq.write_table(pa.table({"goal": texts}), tmp_path / "a.parquet")
    with pytest.raises(PromptError, match=r"a\.parquet, row 1\): prompt 1 is missing \(null\)"):
        read(tmp_path, "a.parquet")


def test_an_error_names_the_row_of_the_file_and_not_of_the_selection(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", 'text,kind\na,x\n"b\nc",y\n,y\n')
    with pytest.raises(PromptError, match=r"\(file:a\.csv, line 5\): prompt 0 is empty"):
        read(tmp_path, "a.csv", column="text", where={"kind": "y"}, skip=1)


def test_a_column_that_some_rows_lack_is_not_listed_as_allowed(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", '{"goal": "a"}\n{"text": "b"}\n')
    with pytest.raises(PromptError) as caught:
        read(tmp_path, "a.jsonl", column="goal")
    assert "allowed: goal" not in str(caught.value)


def test_a_folder_as_the_source_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv").mkdir()
    with pytest.raises(PromptError, match=r"prompts\.goals\.source: .*a\.csv cannot be read: it is a folder without"):
        read(tmp_path, "a.csv")


def test_a_nul_in_the_spec_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=r"\(inline, row 1\): prompt 1 has a NUL character"):
        read_prompts("goals", PromptSetSpec(source="inline", texts=["a", "a\0b"]), tmp_path)


def test_a_nul_in_a_parquet_file_or_a_folder_is_refused_by_its_row(tmp_path: Path) -> None:
    pq.write_table(pa.table({"goal": ["a", "a\0b"]}), tmp_path / "a.parquet")
    Dataset.from_dict({"goal": ["a", "a\0b"]}).save_to_disk(tmp_path / "saved")
    for file in ("a.parquet", "saved"):
        with pytest.raises(PromptError, match=rf"file:{file}, row 1\): prompt 1 has a NUL"):
            read(tmp_path, file)


def test_a_bomb_is_refused_with_the_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_DECODED_BYTES", 1_000)
    write(tmp_path, "a.txt.gz", gzip.compress(b"a" * 999 + b"\n"))
    assert read(tmp_path, "a.txt.gz") == ["a" * 999]
    write(tmp_path, "a.txt.gz", gzip.compress(b"a" * 100_000))
    with pytest.raises(PromptError, match=r"a\.txt\.gz cannot be read: it decompresses to more than 1000 bytes"):
        read(tmp_path, "a.txt.gz")


# Folders of save_to_disk


def test_a_split_that_a_folder_lacks_is_an_error(tmp_path: Path) -> None:
    one = Dataset.from_dict({"goal": ["a"]})
    one.save_to_disk(tmp_path / "one")
    DatasetDict({"test": one, "validation": one}).save_to_disk(tmp_path / "splits")
    with pytest.raises(PromptError, match=r"splits cannot be read: it has no split 'train'; .* test, validation"):
        read(tmp_path, "splits")
    with pytest.raises(PromptError, match=r"one cannot be read: it is one dataset without splits, .* 'test'"):
        read(tmp_path, "one", split="test")


@each("file", ["state.json", "dataset_info.json", "data-00000-of-00001.arrow"])
@each("kept", [0, 0.5, 0.95])
def test_a_damaged_folder_is_an_error_of_one_line(tmp_path: Path, file: str, kept: float) -> None:
    Dataset.from_dict({"goal": ["a", "b"]}).save_to_disk(tmp_path / "saved")
    content = (tmp_path / "saved" / file).read_bytes()
    write(tmp_path / "saved", file, content[: int(kept * len(content))])
    with pytest.raises(PromptError) as caught:
        read(tmp_path, "saved")
    assert "saved cannot be read: a file of the folder is damaged or incomplete" in only_line(caught)


def test_a_folder_of_a_missing_file_is_an_error(tmp_path: Path) -> None:
    Dataset.from_dict({"goal": ["a", "b"]}).save_to_disk(tmp_path / "saved", num_shards=2)
    (tmp_path / "saved" / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(PromptError, match="a file of the folder is damaged or incomplete"):
        read(tmp_path, "saved")
