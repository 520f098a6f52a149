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

    The rows are counted from the files' footers. A piece is a row group: a path and a number, which a worker elsewhere
    can read as well if it sees the same files. Memory O(chunk · d), and what pyarrow reads ahead.

    Args:
        paths: a file, several files, or a pattern such as ``"data/*.parquet"``, whose files are sorted by name.
        y: the name of the column of observations.
        sample_weight: the name of a column, or None.
        features: names of the columns to take; without them all others, which then must be numbers.
        rows: the most rows of a chunk; of each row group the last chunk may be shorter.
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
        self._sizes = [(path, _row_groups(path)) for path in files]
        if not any(size for _, groups in self._sizes for size in groups):
            raise ValueError(f"X is empty: there is no row in {', '.join(files)}")
        if features is None:
            taken = {y, sample_weight}
            features = [name for name in _columns(files[0]) if name not in taken]
        self.names = tuple(features)
        self.columns = len(self.names)
        if not self.columns:
            raise ValueError(f"X has no columns besides y and sample_weight in {files[0]}")
        for path in files:
            _check_columns(path, (*self.names, y, *([] if sample_weight is None else [sample_weight])))
        self._y, self._sample_weight = y, sample_weight
        self.rows = default_rows(self.columns, rows)

    def __len__(self) -> int:
        return sum(-(-size // self.rows) for _, groups in self._sizes for size in groups)

    def pieces(self) -> Iterator[Piece]:
        first = 0
        for path, groups in self._sizes:
            for number, size in enumerate(groups):
                if size:
                    yield RowGroup(path, number, first, size, self.names, self._y, self._sample_weight, self.rows)
                first += size


@dataclass(frozen=True)
class RowGroup:
    """One row group of a file: small, and read where it is called."""

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
            raise ValueError(f"{self.path} has changed: row group {self.number} has no longer {self.size} rows")


def _values(batch: Any, name: str) -> Any:
    """A column of a batch in float64, with NaN for what is missing."""
    # By position: read by name, "a.b" may also bring a field inside a column called a.
    column = batch.column(batch.schema.get_field_index(name))
    return column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)


def _files(paths: str | Path | Sequence[str | Path]) -> list[str]:
    """The paths of the files; a pattern becomes the files that it fits, sorted by name."""
    found: list[str] = []
    for path in [paths] if isinstance(paths, str | Path) else paths:
        name = str(path)
        fitting = [name] if Path(name).exists() else sorted(glob.glob(name, recursive=True))
        if not fitting:
            raise FileNotFoundError(f"X: there is no file {name!r}, nor one that fits it as a pattern")
        found += fitting
    for name in found:
        if any(suffix in (".csv", ".tsv", ".txt") for suffix in Path(name).suffixes):
            raise ValueError(
                f"X: {name!r} is text, and only Parquet files are read in pieces: read it with pandas, by chunksize= "
                "if it is large (its chunks become pairs (X, y) of an object whose iter() starts again), or use "
                "'rcgp fit'"
            )
        if Path(name).is_dir():
            raise IsADirectoryError(f"X: {name!r} is a folder; give its files, as in '{name}/*.parquet'")
    if not found:
        raise ValueError("X is an empty list of files")
    return found


def _metadata(path: str) -> Any:
    try:
        with pq.ParquetFile(path) as file:
            return file.metadata, file.schema_arrow
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"{path} is not a Parquet file or is damaged: {error}") from None


def _row_groups(path: str) -> list[int]:
    """The number of rows of each row group."""
    metadata, _ = _metadata(path)
    return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]


def _columns(path: str) -> list[str]:
    """The names of the columns; an index that pandas wrote without a name is left out."""
    _, schema = _metadata(path)
    return [name for name in schema.names if not name.startswith("__index_level_")]


def _check_columns(path: str, names: tuple[str, ...]) -> None:
    """Raise a ValueError unless each of these columns is there, once, and numeric."""
    _, schema = _metadata(path)
    others = []
    for name in names:
        if schema.names.count(name) != 1:
            known = ", ".join(map(repr, schema.names))
            problem = "has no column" if name not in schema.names else "has more than one column"
            raise ValueError(f"{path} {problem} {name!r}; its columns are {known}")
        kind = schema.field(name).type
        tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
        if not any(test(kind) for test in tests):
            others.append(f"{name!r} ({kind})")
    if others:
        raise ValueError(
            f"{path} has columns that are not numbers: {', '.join(others)}; name those to take by features=[...]"
        )
