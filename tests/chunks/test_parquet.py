from __future__ import annotations

import datetime
import decimal
import subprocess
import sys

import numpy as np
import pytest

from rcgp.chunks import Serial, chunks_of, engine_for


@pytest.fixture
def pa(pq):
    import pyarrow

    return pyarrow


@pytest.fixture
def write(tmp_path, pa, pq):
    """Writes columns to a file, in row groups of 130 rows, and gives its path."""

    def to(name, columns, group=130):
        pq.write_table(pa.table(columns), tmp_path / name, row_group_size=group)
        return tmp_path / name

    return to


@pytest.fixture
def columns(table):
    X, y, w = table
    return {"a": X[:, 0], "target": y, "b": X[:, 1], "w": w, "c": X[:, 2]}


def close(got, wanted):
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("rows", [50, 130, None])
@pytest.mark.parametrize("threads", [None, 2])
def test_a_file_is_read_by_row_groups(write, columns, sums, expected, rows, threads):
    chunks = chunks_of(write("one.parquet", columns), "target", "w", rows=rows)
    assert chunks.names == ("a", "b", "c")
    close(engine_for(chunks, threads=threads).reduce(sums, chunks), expected(weighted=True))
    # Seven groups of 130 rows and one of 90; no two share a chunk.
    assert len(list(chunks)) == {50: 7 * 3 + 2, 130: 8, None: 8}[rows]


@pytest.mark.parametrize("how", ["list", "pattern"])
def test_several_files_are_one_table(write, columns, sums, expected, how):
    order = {"part-1": slice(0, 400), "part-2": slice(400, 400), "part-3": slice(400, 1000)}
    paths = [
        str(write(f"{name}.parquet", {key: values[part] for key, values in columns.items()}))
        for name, part in order.items()
    ]
    source = paths if how == "list" else str(paths[0]).replace("part-1", "part-*")
    chunks = chunks_of(source, "target", features=["a", "b", "c"])
    assert [chunk.first for chunk in chunks][:5] == [0, 130, 260, 390, 400]
    close(Serial().reduce(sums, chunks), expected())


def test_features_are_taken_in_their_order(write, columns):
    chunks = chunks_of(write("one.parquet", columns), "target", features=["c", "a"])
    assert chunks.names == ("c", "a")
    assert chunks.columns == 2
    first = next(iter(chunks)).X.numpy()
    assert np.array_equal(first, np.column_stack([columns["c"], columns["a"]])[: len(first)])


def test_other_types_of_numbers_are_converted(write):
    columns = {
        "small": np.arange(5, dtype=np.uint8),
        "single": np.arange(5, dtype=np.float32) / 2,
        "yes": np.array([True, False, True, True, False]),
        "money": [decimal.Decimal("1.25")] * 5,
        "large": np.full(5, 2**60 + 1),
        "y": np.arange(5, dtype=np.int32),
    }
    (chunk,) = chunks_of(write("types.parquet", columns), "y")
    wanted = [np.arange(5), np.arange(5) / 2, [1, 0, 1, 1, 0], [1.25] * 5, [2.0**60] * 5]
    assert np.array_equal(chunk.X.numpy(), np.column_stack(wanted))


def test_a_name_with_a_dot_is_not_a_field_inside_another_column(write, table):
    X, y, _ = table
    path = write("dots.parquet", {"a.b": X[:, 0], "a": X[:, 1], "y": y})
    assert np.array_equal(np.concatenate([chunk.X[:, 0] for chunk in chunks_of(path, "y", features=["a"])]), X[:, 1])
    assert np.array_equal(np.concatenate([chunk.X[:, 0] for chunk in chunks_of(path, "y", features=["a.b"])]), X[:, 0])


def test_the_index_of_a_data_frame_is_not_a_feature(tmp_path, pd, columns):
    pd.DataFrame(columns).iloc[::-1].to_parquet(tmp_path / "frame.parquet")
    assert chunks_of(tmp_path / "frame.parquet", "target", "w").names == ("a", "b", "c")


@pytest.mark.parametrize(("column", "message"), [("b", "X has NaN in row 612, column 'b'"), ("target", "y has NaN in")])
def test_a_missing_value_is_reported_with_its_row(write, columns, column, message):
    values = list(columns[column])
    values[612] = None
    with pytest.raises(ValueError, match=message):
        list(chunks_of(write("gap.parquet", columns | {column: values}), "target", rows=40))


def test_unreadable_files_and_columns_raise(write, columns, tmp_path):
    path = write("one.parquet", columns)
    with pytest.raises(ValueError, match="has no column 'z'; its columns are 'a', 'target'"):
        chunks_of(path, "z")
    with pytest.raises(ValueError, match="has no column 'z'"):
        chunks_of(path, "target", features=["a", "z"])
    with pytest.raises(FileNotFoundError, match="there is no file"):
        chunks_of(str(tmp_path / "none-*.parquet"), "target")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        chunks_of(tmp_path, "target")
    (tmp_path / "text.parquet").write_text("no")
    with pytest.raises(ValueError, match=r"text.parquet is not a Parquet file or is damaged"):
        chunks_of(tmp_path / "text.parquet", "target")
    dates = write("dates.parquet", columns | {"day": [datetime.date(2024, 1, 1)] * 1000, "id": ["P"] * 1000})
    with pytest.raises(ValueError, match=r"not numbers: 'day' \(date32.*\), 'id' \(string\); .* by features="):
        chunks_of(dates, "target")
    (tmp_path / "rows.csv").write_text("a,y\n1,2\n")
    with pytest.raises(ValueError, match=r"rows.csv' is text, .* by chunksize= .* or use 'rcgp fit'"):
        chunks_of(tmp_path / "rows.csv", "y")
    assert chunks_of(dates, "target", features=["a"]).columns == 1
    with pytest.raises(ValueError, match="X has no columns besides"):
        chunks_of(write("few.parquet", {"y": [1.0]}), "y")
    with pytest.raises(ValueError, match="X is empty"):
        chunks_of(write("empty.parquet", {"x": np.zeros(0), "y": np.zeros(0)}), "y")


def test_a_changed_or_damaged_file_raises(write, columns):
    path = write("one.parquet", columns)
    chunks = chunks_of(path, "target")
    write("one.parquet", {key: values[:500] for key, values in columns.items()}, group=125)
    with pytest.raises(ValueError, match="has changed: row group 0 no longer has 130 rows"):
        list(chunks)
    content = bytearray(path.read_bytes())
    content[100:2000] = b"\0" * 1900
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"one.parquet cannot be read from row 0 on"):
        list(chunks)


@pytest.mark.slow
def test_arrays_need_neither_dask_nor_pyarrow():
    script = (
        "import sys; sys.modules.update(dict.fromkeys(['dask', 'distributed', 'pyarrow', 'pandas', 'cloudpickle']));"
        "import numpy as np; from rcgp.chunks import chunks_of, engine_for;"
        "chunks = chunks_of(np.ones((5, 2)), np.ones(5));"
        "print(float(engine_for(chunks).reduce(lambda chunk: chunk.y.sum(), chunks)));"
        "chunks_of('a.parquet', 'y')"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert answer.stdout.strip() == "5.0"
    assert "reading Parquet files needs pyarrow" in answer.stderr
    assert 'pip install "rcgp[dask]"' in answer.stderr
