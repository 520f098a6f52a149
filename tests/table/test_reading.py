from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rcgp.table import CsvFormat, TableError, read_table

PLAIN = "size,price\n1,2\n3,4\n"


@pytest.fixture
def written(tmp_path):
    """Writes text or bytes to a file and gives its path."""

    def write(content, name="data.csv"):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


SAME_TABLE = {
    "comma": PLAIN,
    "semicolon": PLAIN.replace(",", ";"),
    "tab": PLAIN.replace(",", "\t"),
    "bar": PLAIN.replace(",", "|"),
    "CRLF": PLAIN.replace("\n", "\r\n"),
    "CR alone": PLAIN.replace("\n", "\r"),
    "no last newline": PLAIN.rstrip(),
    "UTF-8 with mark": "\ufeff" + PLAIN,
    "UTF-16 little-endian": b"\xff\xfe" + PLAIN.encode("utf-16-le"),
    "UTF-16 big-endian": b"\xfe\xff" + PLAIN.encode("utf-16-be"),
    "gzip": gzip.compress(PLAIN.encode()),
    "quoted": '"size","price"\n"1","2"\n"3","4"\n',
    "spaces after commas": 'size, "price"\n1, "2"\n3, 4\n',
    "Excel's first line": "sep=;\r\n" + PLAIN.replace(",", ";"),
    "blank lines": "\nsize,price\n1,2\n\n  \n3,4\n\n",
}


@pytest.mark.parametrize("name", SAME_TABLE)
def test_every_way_to_write_a_csv_file_gives_the_same_text(name, written):
    table = read_table(written(SAME_TABLE[name]))
    expected = pd.DataFrame({"size": ["1", "3"], "price": ["2", "4"]}, index=pd.RangeIndex(1, 3), dtype="str")
    pd.testing.assert_frame_equal(table, expected)


def test_cells_are_not_interpreted(written):
    cells = ["007", "NA", "", "1e5", "true", "2024-01-01", "a,b", 'say "no"', "two\nlines"]
    quoted = "".join('"{}",1\n'.format(cell.replace('"', '""')) for cell in cells)
    assert list(read_table(written("x,y\n" + quoted))["x"]) == cells


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("a;b\n1,5;2,5\n3,5;4,5\n", ["a", "b"]),  # decimal commas
        ("city;price, EUR\nParis;3\nRome;4\n", ["city", "price, EUR"]),
        ('when,"temperature; C"\n1,2\n', ["when", "temperature; C"]),
        ("a,b,c\n1,2,x;y\n3,4,z\n", ["a", "b", "c"]),
        ("a\tb\nx, y\t1\nz, w\t2\n", ["a", "b"]),
        ("only\n1\n2\n", ["only"]),
        ("PAR1,b\n1,2\n", ["PAR1", "b"]),  # the magic of Parquet, at one end
        ("<script>,größe,🦆\n1,2,3\n", ["<script>", "größe", "🦆"]),
        (",b,\n1,2,3\n", ["Unnamed: 0", "b", "Unnamed: 2"]),
    ],
)
def test_the_header_is_split_where_the_rows_are(text, columns, written):
    assert list(read_table(written(text)).columns) == columns


def test_a_delimiter_is_found_although_the_sample_of_a_long_file_ends_inside_a_row(written):
    names = [f"column {i}" + " or so" * 1000 for i in range(20)]
    table = read_table(written(";".join(names) + "\n" + ";".join("1,5" * 2000 for _ in names) + "\n"))
    assert list(table.columns) == names


def test_rows_are_numbered_over_all_batches(written, monkeypatch):
    monkeypatch.setattr("rcgp.table.reading._BATCH", 3)
    table = read_table(written("x,y\n" + "".join(f"{i},{i}\n" for i in range(1, 8))))
    assert list(table.index) == [1, 2, 3, 4, 5, 6, 7]
    assert list(table["x"]) == [str(i) for i in table.index]


def test_encoding_and_separator_can_be_stated(written):
    path = written("größe:price\n1,5:2\n3:4\n".encode("cp1252"))
    table = read_table(path, CsvFormat(encoding="cp1252", separator=":"))
    assert table.to_dict("list") == {"größe": ["1,5", "3"], "price": ["2", "4"]}
    with pytest.raises(TableError, match="or name its encoding, such as --encoding cp1252"):
        read_table(path)
    with pytest.raises(TableError, match="try another --encoding"):
        read_table(path, CsvFormat(encoding="ascii"))
    assert list(read_table(written("a\tb\n1\t2\n"), CsvFormat(separator="tab"))) == ["a", "b"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"encoding": "klingon"}, "no --encoding 'klingon': try"),
        ({"encoding": "base64"}, "no --encoding"),
        ({"separator": "::"}, "--separator must be one character"),
        ({"decimal": ";"}, "--decimal must be"),
        ({"decimal": ",", "separator": ","}, "cannot both be"),
        ({"date_format": "DD/MM"}, "--date-format must be a format such as '%d/%m/%Y'"),
        ({"decimal": 3}, "must be text"),
    ],
)
def test_a_format_that_no_file_has_is_refused(given, message):
    with pytest.raises(TableError, match=message):
        CsvFormat(**given)


BAD = {
    "empty": (b"", "'data.csv' is empty"),
    "blank": (b"\n \n", "'data.csv' is empty"),
    "header only": (b"x,y\n", "'data.csv' has column names but no rows"),
    "latin-1": ("x,y\né,1\n".encode("latin-1"), "byte 0xe9 at offset 4.*convert the file to UTF-8"),
    "bad byte after the mark": (b"\xef\xbb\xbfx,y\n\xff,1\n", "byte 0xff at offset 7"),
    "half a UTF-16 unit": (b"\xff\xfex\0,\0y", "not text in UTF-16: byte 0x79 at offset 6"),
    "NUL": (b"x,y\n1,2\n3,\0\n", "NUL character in line 3"),
    "too many cells": (b"x,y\n1,2\n\n3,4,5\n", "line 4 of 'data.csv' has 3 cells where the header, line 1, has 2"),
    "lines above the header": (
        b"made by sensor 3\nx,y\n1,2\n",
        "line 1, has 1: .*remove lines above the header",
    ),
    "too few cells": (b'x,y\n"1\n2",2\n3\n', "line 4 of 'data.csv' has 1 cell where the header, line 1, has 2"),
    "open quotation mark": (b'x,y\n1,2\n3,"4\n5,6\n', "from line 3 on: .*quotation mark left open"),
    "text after a quoted cell": (b'x,y\n"1"a,2\n', "from line 2 on"),
    "enormous cell": (b'x,y\n"""' + b"1" * 200_000 + b'",2\n', "from line 2 on: field larger than field limit"),
    "repeated names": (b"x,y,x\n1,2,3\n", "more than one column called 'x'"),
    "names repeated but for spaces": (b"x,x \n1,2\n", "more than one column called 'x'"),
    "damaged gzip": (gzip.compress(PLAIN.encode())[:-9], "not a gzip file or is damaged"),
    "spreadsheet": (b"PK\x03\x04\x14\0", "zip archive, as Excel workbooks are: save the table as CSV"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_a_clear_sentence(name, written):
    content, message = BAD[name]
    with pytest.raises(TableError, match=message):
        read_table(written(content))


@pytest.mark.parametrize(
    ("content", "name"),
    [(PLAIN, "data.csv.gz"), (PLAIN, "data.parquet"), (b"PAR1", "data.pq"), (b"PAR1PAR1", "data.csv")],
)
def test_a_file_of_another_format_is_a_clear_error(content, name, written):
    with pytest.raises(TableError, match="or is damaged"):
        read_table(written(content, name))


def test_errors_for_paths_that_cannot_be_opened_state_the_reason(tmp_path, monkeypatch, written):
    with pytest.raises(TableError, match="there is no file"):
        read_table(tmp_path / "nothing.csv")
    with pytest.raises(TableError, match="is a directory"):
        read_table(str(tmp_path))
    with pytest.raises(TableError, match="cannot be opened: embedded null"):
        read_table("a\0b")

    def denied(self):
        raise PermissionError(13, "Permission denied")

    path = written(PLAIN)
    monkeypatch.setattr(Path, "read_bytes", denied)  # not by chmod: an administrator may read everything
    with pytest.raises(TableError, match="permission to read it is denied"):
        read_table(path)


@pytest.mark.parametrize(
    ("place", "content"),
    [("gzip.decompress", gzip.compress(PLAIN.encode())), ("pyarrow.parquet.ParquetFile", b"PAR1PAR1")],
    ids=["gzip", "parquet"],  # compressed bytes have the time in them
)
def test_a_file_larger_than_memory_is_a_clear_error(place, content, written, monkeypatch):
    def bomb(*arguments, **options):
        raise MemoryError

    monkeypatch.setattr(place, bomb)
    with pytest.raises(TableError, match="does not fit into memory"):
        read_table(written(content))


def test_names_with_control_characters_are_escaped_in_messages(written):
    with pytest.raises(TableError) as caught:
        read_table(written("\x1b[31m,\x1b[31m\n1,2\n"))
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("name", ["data.parquet", "data.PQ", "data.bin"])
def test_parquet_is_known_by_its_suffix_or_its_magic(name, tmp_path):
    pq.write_table(pa.table({"x": [1.5, 2.5], "y": [1, 2]}), tmp_path / name)
    table = read_table(tmp_path / name)
    assert list(table["x"]) == [1.5, 2.5]
    assert list(table.index) == [1, 2]


def test_an_index_in_parquet_is_a_column_only_if_it_has_a_name(tmp_path):
    frame = pd.DataFrame({"x": [1.0, 2.0]}, index=[7, 7])
    frame.to_parquet(tmp_path / "unnamed.parquet")
    frame.rename_axis("day").to_parquet(tmp_path / "named.parquet")
    unnamed, named = read_table(tmp_path / "unnamed.parquet"), read_table(tmp_path / "named.parquet")
    assert list(unnamed.columns) == ["x"]
    assert list(named["day"]) == [7, 7]
    assert list(unnamed.index) == list(named.index) == [1, 2]


def test_a_column_named_like_a_nested_field_is_read(tmp_path):
    pq.write_table(pa.table({"a": [{"b": 1}], "a.b": [2.0]}), tmp_path / "dots.parquet")
    assert list(read_table(tmp_path / "dots.parquet")["a.b"]) == [2.0]


@pytest.mark.parametrize(
    ("arrow", "message"),
    [
        (pa.table({}), "has no columns"),
        (pa.table({"x": pa.array([], pa.float64())}), "no rows"),
        (pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"]), "more than one column called 'x'"),
    ],
)
def test_parquet_without_a_usable_table_is_a_clear_error(arrow, message, tmp_path):
    pq.write_table(arrow, tmp_path / "data.parquet")
    with pytest.raises(TableError, match=message):
        read_table(tmp_path / "data.parquet")


def test_damaged_parquet_is_a_clear_error_or_readable(tmp_path):
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"x": [1.5, None] * 20, "c": ["red", "blue"] * 20}), path)
    whole = path.read_bytes()
    generator, failures = np.random.default_rng(0), 0
    for _ in range(200):
        spoilt = bytearray(whole)
        spoilt[generator.integers(len(whole))] ^= int(generator.integers(1, 256))
        path.write_bytes(spoilt)
        try:
            read_table(path)
        except TableError:
            failures += 1
    assert failures > 50
