"""Read a CSV or Parquet file into a table, or raise one clear sentence.

Cells are not interpreted here: a CSV file gives text, a Parquet file its own types, and :mod:`rcgp.table.features`
decides what a column holds. CSV is parsed by the standard library's strict reader, a second for a million rows, so that
errors name the line: pandas silently moves surplus cells into an index, fills short rows and turns some texts into
missing values, and Arrow accepts open quotation marks.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from rcgp.table.encoding import CsvFormat, TableError, listed, printable, repeated, shown

__all__ = ["read_table"]

_DELIMITERS = (",", ";", "\t", "|")
#: Sample of a file that decides its delimiter: characters, and records within them.
_SAMPLE_CHARACTERS, _SAMPLE_RECORDS = 200_000, 100
#: Rows held as Python strings at a time.
_BATCH = 50_000
_UTF8_MARK, _UTF16_MARKS = b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff")
_GZIP_MAGIC, _PARQUET_MAGIC, _ZIP_MAGIC = b"\x1f\x8b", b"PAR1", b"PK\x03\x04"


def read_table(path: str | Path, csv_format: CsvFormat | None = None) -> pd.DataFrame:
    """Read a CSV or Parquet file.

    Parquet is known by its magic bytes or the suffix ``.parquet`` or ``.pq``; all else is CSV, in UTF-8 or in UTF-16
    with a byte order mark unless the format states another encoding, and either may be compressed with gzip. The
    delimiter of a CSV file is whichever of comma, semicolon, tab and ``|`` splits its rows as it splits its header.
    Blank lines are skipped; spaces around names and before cells are dropped; a column without a name is called
    ``Unnamed: 0`` after its position, as pandas does. An index that pandas wrote into a Parquet file is a column if it
    has a name, and is left out if not.

    Args:
        path: the file.
        csv_format: encoding and delimiter of a CSV file, where they cannot be found.

    Returns:
        One row for each row of the file, numbered from 1 in the index (the header of a CSV file is not counted). The
        cells of a CSV file are text, and ``attrs["separator"]`` is its delimiter; the columns of a Parquet file keep
        their Arrow types. Cost O(size of the file).

    Raises:
        TableError: for a file that cannot be opened, decoded or parsed, and for one without rows.
    """
    path = Path(path)
    name = shown(path.name)
    try:
        content = _decompressed(_content(path), path)
        if not content:
            raise TableError(f"{name} is empty: it needs a header and at least one row")
        if _is_parquet(content, path):
            table = _parquet(content, name)
        else:
            given = csv_format or CsvFormat()
            table = _csv(_decoded(content, given.encoding, name), given.separator, name)
    except MemoryError:
        raise TableError(f"{name} does not fit into memory: use fewer rows or columns") from None
    if not len(table):
        raise TableError(f"{name} has column names but no rows")
    table.index = pd.RangeIndex(1, len(table) + 1)
    return table


def _content(path: Path) -> bytes:
    """The bytes of a file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise TableError(f"there is no file {str(path)!r}: check the path") from None
    except IsADirectoryError:
        raise TableError(f"{str(path)!r} is a directory: give a CSV or Parquet file in it") from None
    except PermissionError:
        raise TableError(f"{str(path)!r} cannot be opened: permission to read it is denied") from None
    except (OSError, ValueError) as error:  # ValueError: a path that no file can have
        raise TableError(f"{str(path)!r} cannot be opened: {printable(error, 200)}") from None


def _decompressed(content: bytes, path: Path) -> bytes:
    """The content of a gzip file, known by its first bytes or its suffix; other content unchanged."""
    if not content.startswith(_GZIP_MAGIC) and path.suffix.lower() != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise TableError(f"{shown(path.name)} is not a gzip file or is damaged: {printable(error, 200)}") from None


def _is_parquet(content: bytes, path: Path) -> bool:
    """Whether to read Parquet, by suffix or by the magic bytes at both ends: a CSV header may begin with PAR1."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if ".parquet" in suffixes or ".pq" in suffixes:
        return True
    return content.startswith(_PARQUET_MAGIC) and content.endswith(_PARQUET_MAGIC)


def _parquet(content: bytes, name: str) -> pd.DataFrame:
    """The columns of a Parquet file, in their Arrow types."""
    try:
        file = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
        names = [column for column in file.schema_arrow.names if not re.fullmatch(r"__index_level_\d+__", column)]
        _check_names(names, name)
        # By position: read(columns=...) takes "a.b" for a field inside a column called a.
        arrow = file.read()
        arrow = arrow.select([arrow.schema.get_field_index(column) for column in names])
        arrow.validate(full=True)
        return arrow.to_pandas(types_mapper=pd.ArrowDtype, ignore_metadata=True)  # type: ignore[no-any-return]
    except (TableError, MemoryError):
        raise
    except Exception as error:  # a damaged file fails anywhere inside the decoder, in ways that it does not document
        raise TableError(f"{name} is not a Parquet file or is damaged: {printable(error, 200)}") from None


def _decoded(content: bytes, encoding: str | None, name: str) -> str:
    """The text of a file in UTF-8, in UTF-16 with its mark, or as stated. Other encodings cannot be told apart."""
    if content.startswith(_ZIP_MAGIC):
        raise TableError(f"{name} is a zip archive, as Excel workbooks are: save the table as CSV in UTF-8 instead")
    codec = encoding or ("utf-16" if content.startswith(_UTF16_MARKS) else "utf-8")
    mark = len(_UTF8_MARK) if content.startswith(_UTF8_MARK) and codecs.lookup(codec).name == "utf-8" else 0
    try:
        text = content[mark:].decode(codec)
    except UnicodeDecodeError as error:
        offset = error.start + mark
        remedy = "try another --encoding" if encoding else "name its encoding, such as --encoding cp1252"
        raise TableError(
            f"{name} is not text in {codec.upper()}: byte 0x{content[offset]:02x} at offset {offset} does not fit; "
            f"convert the file to UTF-8, or {remedy}"
        ) from None
    except (UnicodeError, ValueError) as error:
        raise TableError(
            f"{name} is not text in {codec.upper()}: {printable(error, 200)}; try another --encoding"
        ) from None
    position = text.find("\0")
    if position >= 0:
        line = text.count("\n", 0, position) + 1
        raise TableError(
            f"{name} has a NUL character in line {line}: it is not a text file, is damaged, or is in another --encoding"
        )
    return text


def _csv(text: str, separator: str | None, name: str) -> pd.DataFrame:
    """The cells of a CSV file, as text. Raises TableError naming the line that is wrong."""
    if hint := re.match(r"sep=([^\r\n])(?=[\r\n])", text):  # Excel writes and reads such a first line
        separator, text = separator or hint[1], text[hint.end() :]
    delimiter = separator or _delimiter(text)
    records = _records(text, delimiter, name)
    first, header = next(records, (0, []))
    if not header:
        raise TableError(f"{name} is empty: it needs a header and at least one row")
    names = [cell.strip() or f"Unnamed: {position}" for position, cell in enumerate(header)]
    _check_names(names, name)
    batches = [pa.schema([(column, pa.string()) for column in names]).empty_table()]
    while batch := list(islice(records, _BATCH)):
        for line, record in batch:
            if len(record) != len(names):
                cells = f"{len(record)} cell{'s' if len(record) > 1 else ''}"
                raise TableError(
                    f"line {line} of {name} has {cells} where the header, line {first}, has {len(names)}: quote cells "
                    "that contain the delimiter, do not leave cells out, remove lines above the header, or name the "
                    "delimiter with --separator"
                )
        columns = zip(*(record for _, record in batch), strict=True)
        batches.append(pa.table([pa.array(column, pa.string()) for column in columns], names=names))
    table: pd.DataFrame = pa.concat_tables(batches).to_pandas()
    table.attrs["separator"] = delimiter
    return table


def _records(text: str, delimiter: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """Each record that is not blank, with the number of the line that it begins in."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True, skipinitialspace=True)
    line = 1
    while True:
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            why = f"{printable(error, 200)}; is a quotation mark left open there?"
            raise TableError(f"{name} cannot be read from line {line} on: {why}") from None
        if len(record) > 1 or (record and record[0].strip()):
            yield line, record
        line = reader.line_num + 1


def _delimiter(text: str) -> str:
    """The delimiter that splits most of the first rows into as many cells as the header; the comma if none does."""

    def score(delimiter: str) -> tuple[float, int]:
        """The share of records that are as wide as the header, and its width; lowest if it is not split."""
        widths: list[int] = []
        with suppress(TableError):  # what precedes a misplaced quotation mark counts; the mark is reported later
            records = _records(text[:_SAMPLE_CHARACTERS], delimiter, "")
            widths.extend(len(record) for _, record in islice(records, _SAMPLE_RECORDS))
        if not widths or widths[0] < 2:
            return (-1.0, 0)
        return (widths.count(widths[0]) / len(widths), widths[0])

    return max(_DELIMITERS, key=score)


def _check_names(names: list[str], name: str) -> None:
    """Refuse a table without columns, or with two of the same name."""
    if not names:
        raise TableError(f"{name} has no columns")
    if twice := repeated(names):
        raise TableError(f"{name} has more than one column called {listed(twice)}: give each a name of its own")
