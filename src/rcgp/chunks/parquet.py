"""Rows in Parquet files, read one row group at a time and within it one chunk at a time."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rcgp.chunks.chunk import Chunk, Chunks, Piece, checked, default_rows

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:
    raise ImportError(f'reading Parquet files needs pyarrow ({error}): pip install "rcgp[dask]"') from error

__all__ = ["ParquetChunks"]


class ParquetChunks(Chunks):
    """The rows of one or more Parquet files, in the order of the files and of the rows in them.

    Rows are counted from the files' footers. A piece is a row group, given by a path and a number: any worker that sees
    the files can read it. Memory O(chunk · d), plus what pyarrow reads ahead.

    Args:
        paths: a file, several files, or a pattern such as ``"data/*.parquet"``, whose files are sorted by name.
        y: the name of the column of observations.
        sample_weight: the name of a column, or None.
        features: names of the columns to take; by default all others, which then must be numbers.
        rows: the most rows of a chunk; the last chunk of a row group may be shorter.
    """

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        y: str,
        sample_weight: str | None = None,
        features: Sequence[str] | None = None,
        rows: int | None = None,
    ) -> None:
        files = _files(paths)
        footers = [_footer(path) for path in files]
        self._sizes = [(path, sizes) for path, (sizes, _) in zip(files, footers, strict=True)]
        if not any(size for _, sizes in self._sizes for size in sizes):
            raise ValueError(f"X is empty: there is no row in {', '.join(files)}")
        if features is None:  # without an index that pandas wrote without a name
            columns = [name for name in footers[0][1].names if not name.startswith("__index_level_")]
            features = [name for name in columns if name not in (y, sample_weight)]
        self.names = tuple(features)
        self.columns = len(self.names)
        if not self.columns:
            raise ValueError(f"X has no columns besides y and sample_weight in {files[0]}")
        for path, (_, schema) in zip(files, footers, strict=True):
            _check_columns(path, schema, (*self.names, y, *([] if sample_weight is None else [sample_weight])))
        self._y, self._sample_weight = y, sample_weight
        self.rows = default_rows(self.columns, rows)

    def pieces(self) -> Iterator[Piece]:
        first = 0
        for path, sizes in self._sizes:
            for number, size in enumerate(sizes):
                if size:
                    yield RowGroup(path, number, first, size, self.names, self._y, self._sample_weight, self.rows)
                first += size


@dataclass(frozen=True)
class RowGroup:
    """One row group of a file: a small object, read where it is called."""

    path: str
    number: int
    first: int
    size: int
    names: tuple[str, ...]
    y: str
    sample_weight: str | None
    rows: int

    def __call__(self) -> Iterator[Chunk]:
        columns = list({*self.names, self.y} | ({self.sample_weight} if self.sample_weight is not None else set()))
        first = self.first
        try:
            with pq.ParquetFile(self.path) as file:
                for batch in file.iter_batches(self.rows, row_groups=[self.number], columns=columns):
                    X = np.stack([_values(batch, name) for name in self.names], axis=1)
                    weights = None if self.sample_weight is None else _values(batch, self.sample_weight)
                    yield checked(X, _values(batch, self.y), weights, first, len(self.names), self.names)
                    first += len(X)
        except (OSError, pa.ArrowException) as error:
            raise ValueError(f"{self.path} cannot be read from row {first} on: {error}") from None
        if first - self.first != self.size:
            raise ValueError(f"{self.path} has changed: row group {self.number} no longer has {self.size} rows")


def _values(batch: Any, name: str) -> Any:
    """A column of a batch in float64, with NaN for missing values."""
    # By position: by name, "a.b" may also select a field inside a column called a.
    column = batch.column(batch.schema.get_field_index(name))
    return column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)


def _files(paths: str | Path | Sequence[str | Path]) -> list[str]:
    """The paths of the files; a pattern becomes the files that match it, sorted by name."""
    found: list[str] = []
    for name in map(str, [paths] if isinstance(paths, str | Path) else paths):
        matches = [name] if Path(name).exists() else sorted(glob.glob(name, recursive=True))
        if not matches:
            raise FileNotFoundError(f"X: there is no file {name!r}, and none matches it as a pattern")
        found += matches
    for name in found:
        if any(suffix in (".csv", ".tsv", ".txt") for suffix in Path(name).suffixes):
            raise ValueError(
                f"X: {name!r} is text, and only Parquet files are read in pieces: read it with pandas, by chunksize= "
                "if it is large (its chunks become pairs (X, y) of an object whose iter() starts again), or use "
                "'rcgp fit'"
            )
        if Path(name).is_dir():
            raise IsADirectoryError(f"X: {name!r} is a folder; give its files, as in '{name}/*.parquet'")
    return found


def _footer(path: str) -> tuple[list[int], Any]:
    """The number of rows of each row group of a file, and its schema."""
    try:
        with pq.ParquetFile(path) as file:
            metadata, schema = file.metadata, file.schema_arrow
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"{path} is not a Parquet file or is damaged: {error}") from None
    return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)], schema


def _check_columns(path: str, schema: Any, names: tuple[str, ...]) -> None:
    """Raise a ValueError unless each of these columns is there, once, and numeric."""
    numeric = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    others = []
    for name in names:
        if schema.names.count(name) != 1:
            known = ", ".join(map(repr, schema.names))
            problem = "has no column" if name not in schema.names else "has more than one column"
            raise ValueError(f"{path} {problem} {name!r}; its columns are {known}")
        kind = schema.field(name).type
        if not any(test(kind) for test in numeric):
            others.append(f"{name!r} ({kind})")
    if others:
        raise ValueError(
            f"{path} has columns that are not numbers: {', '.join(others)}; name those to take by features=[...]"
        )
