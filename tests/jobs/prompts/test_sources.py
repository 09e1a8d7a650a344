"""Reading prompt sets: every kind of file, the order of `where`, `draw` and `limit`, and the errors."""

import json
from pathlib import Path
from typing import Any

import fastparquet
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.model_selection import train_test_split
from support.errors import only_line

from theodolite.errors import PromptError
from theodolite.spec_parts import PromptSetSpec
from theodolite.store.tables import encode_table
from theodolite.store.uploads import store_upload
from theodolite_jobs.prompts.sources import read_prompts


def write(folder: Path, name: str, content: str | bytes) -> None:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))


def read(folder: Path, file: str, **settings: Any) -> list[str]:
    return read_prompts("goals", PromptSetSpec(source=f"file:{file}", **settings), folder)


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


@pytest.mark.parametrize(
    ("file", "content"),
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


@pytest.mark.parametrize("content", ['["first", "second"]', '[{"goal": "first"}, {"goal": "second"}]'])
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


@pytest.mark.parametrize("file", ["a.csv", "a.txt", "a.jsonl"])
def test_blank_lines_at_the_end_are_no_prompts(tmp_path: Path, file: str) -> None:
    lines = {"a.csv": ["prompt", "first", "second"], "a.txt": ["first", "second"], "a.jsonl": ['"first"', '"second"']}
    write(tmp_path, file, "\r\n".join([*lines[file], "", "", ""]))
    assert read(tmp_path, file) == ["first", "second"]


@pytest.mark.parametrize("header", ["prompt", "Text", "goal", "instruction"])
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


@pytest.mark.parametrize(("test_size", "random_state"), [(0.2, 42), (0.5, 0), (0.33, 7)])
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


@pytest.mark.parametrize(
    ("file", "content"),
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


# Errors

BAD = {
    "missing_file": (None, "gone.csv", {}, ["goals.source", "gone.csv does not exist"]),
    "unknown_suffix": (
        "x",
        "a.xlsx",
        {},
        ["goals.source", "a.xlsx", ".csv, .jsonl, .json, .parquet, .txt"],
    ),
    "no_suffix": ("x", "goals", {}, ["goals.source", ".csv, .jsonl, .json, .parquet, .txt"]),
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
        ["goals.where", "none of the 1 rows has the values requested for kind", "goal, kind"],
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
    "json_of_numbers": ('["a", 2]', "a.json", {}, ["goals.source", "row 1 is of type int", "a string or an object"]),
    "jsonl_of_numbers": ('"a"\n2', "a.jsonl", {}, ["goals.source", "line 2 is of type int", "a string or an object"]),
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
    "csv_of_tabs": ("id\tprompt\r\n1\ta\r\n", "a.csv", {}, ["goals.source", "tabs", "id, prompt"]),
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
    "half_a_surrogate_pair": ('["whole", "half \\ud83d"]', "a.json", {}, ["prompts.goals", "prompt 1"]),
    "object_without_keys": ("[{}]", "a.json", {}, ["prompts.goals"]),
}


@pytest.mark.parametrize(("content", "file", "settings", "words"), BAD.values(), ids=BAD.keys())
def test_error_names_the_set_and_the_fault(
    tmp_path: Path, content: str | bytes | None, file: str, settings: dict[str, Any], words: list[str]
) -> None:
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
    with pytest.raises(PromptError, match=r"prompts\.goals\.source: .*a\.csv does not exist or is not a file"):
        read(tmp_path, "a.csv")


# The built-in sets


def builtin(name: str, **settings: Any) -> list[str]:
    return read_prompts(name, PromptSetSpec(source=f"builtin:{name}", **settings), Path("/nowhere"))


@pytest.mark.parametrize(("name", "count"), [("harmful", 256), ("harmless", 256), ("nouns", 100)])
def test_builtin_sets_have_their_size_and_no_duplicates_or_extra_spaces(name: str, count: int) -> None:
    texts = builtin(name)
    assert len(texts) == count
    assert len({text.casefold() for text in texts}) == count
    assert all(text == " ".join(text.split()) and text for text in texts)


def test_no_prompt_is_in_both_sets_of_the_pair() -> None:
    assert not set(builtin("harmful")) & set(builtin("harmless"))


def test_nouns_are_single_words() -> None:
    assert all(text.isalpha() and text.islower() for text in builtin("nouns"))


def test_pairs_have_the_same_first_word_ending_and_length() -> None:
    for harmful, harmless in zip(builtin("harmful"), builtin("harmless"), strict=True):
        assert harmful.split()[0] == harmless.split()[0]
        assert harmful[-1] == harmless[-1]
        assert harmful[-1] in ".?!"
        assert abs(len(harmful.split()) - len(harmless.split())) <= 2


def test_pairs_share_most_of_their_words() -> None:
    for harmful, harmless in zip(builtin("harmful"), builtin("harmless"), strict=True):
        mine, theirs = set(harmful.lower().split()), set(harmless.lower().split())
        assert len(mine & theirs) >= 0.25 * len(mine | theirs), (harmful, harmless)


def test_drawing_both_sets_alike_keeps_pairs_together() -> None:
    draw = {"test_size": 0.5, "random_state": 5}
    partner = dict(zip(builtin("harmful"), builtin("harmless"), strict=True))
    drawn = builtin("harmful", draw=draw, limit=20)
    assert [partner[text] for text in drawn] == builtin("harmless", draw=draw, limit=20)


def test_prompts_in_the_spec_and_uploaded_files_are_read(tmp_path):
    inline = PromptSetSpec(source="inline", texts=["one", "two", "three"], skip=1)
    assert read_prompts("mine", inline, Path("/nowhere")) == ["two", "three"]
    upload = store_upload(str(tmp_path), b"prompt\none\n", "csv")
    assert read_prompts("mine", PromptSetSpec(source=upload), Path("/nowhere"), str(tmp_path)) == ["one"]
    broken = store_upload(str(tmp_path), b'prompt\n"one\n', "csv")
    with pytest.raises(PromptError, match=r"prompts\.mine\.source: .*\.csv cannot be read: .* line 2"):
        read_prompts("mine", PromptSetSpec(source=broken), Path("/nowhere"), str(tmp_path))
