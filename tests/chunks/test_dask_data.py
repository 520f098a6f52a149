from __future__ import annotations

import numpy as np
import pytest

from rcgp.chunks import Serial, Threads, chunks_of, engine_for


def close(got, wanted):
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize(
    ("x_blocks", "y_blocks"),
    [((100, 3), 100), ((100, 2), 70), ((1000, 1), 1), (((1, 998, 1), (1, 2)), ((500, 500),)), ((300, -1), -1)],
)
@pytest.mark.parametrize("rows", [60, None])
def test_arrays_in_blocks_of_any_shape(da, table, sums, expected, x_blocks, y_blocks, rows):
    X, y, w = table
    chunks = chunks_of(
        da.from_array(X, chunks=x_blocks), da.from_array(y, chunks=y_blocks), da.from_array(w, chunks=77), rows=rows
    )
    close(Serial().reduce(sums, chunks), expected(weighted=True))
    assert max(len(chunk.y) for chunk in chunks) <= (rows or 1000)


@pytest.mark.parametrize("threads", [None, 2])
def test_data_frames(dd, pd, table, sums, expected, threads):
    X, y, w = table
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y, w=w)
    parts = dd.from_pandas(frame, npartitions=7)
    chunks = chunks_of(parts[["a", "b", "c"]], parts["y"], parts["w"])
    assert chunks.names == ("a", "b", "c")
    assert chunks.columns == 3
    close(engine_for(chunks, threads=threads).reduce(sums, chunks), expected(weighted=True))
    assert len(list(chunks)) == 7


def test_partitions_of_different_sizes_are_aligned(da, dd, pd, table, sums, expected):
    X, y, w = table
    frame = dd.from_pandas(pd.DataFrame(X), npartitions=7)
    series = dd.from_pandas(pd.Series(y, index=np.arange(1000) * 2), npartitions=3)
    close(Serial().reduce(sums, chunks_of(frame, series, da.from_array(w, chunks=450))), expected(weighted=True))


def test_unknown_sizes_are_counted_once_and_empty_blocks_skipped(da, table, sums):
    X, y, _ = table
    keep = (X[:, 0] > 0) & (np.arange(1000) >= 250)  # the first two blocks are empty
    counted = []

    def count(block):
        counted.append(len(block))
        return block

    blocks = da.from_array(X, chunks=(100, 2))
    targets = da.from_array(y, chunks=100)
    chosen = da.from_array(keep, chunks=100)
    counting = targets[chosen].map_blocks(count, dtype=float, meta=np.empty(0))
    chunks = chunks_of(blocks[chosen], counting)
    wanted = Serial().reduce(sums, chunks_of(X[keep], y[keep]))
    assert not counted
    assert len(list(chunks)) == 8
    assert len(counted) == 18  # ten blocks are counted, eight read
    close(Serial().reduce(sums, chunks), wanted.numpy())
    assert len(counted) == 26
    firsts = np.cumsum([0, *(keep[start : start + 100].sum() for start in range(200, 900, 100))])
    assert [chunk.first for chunk in chunks] == firsts.tolist()


def test_partitions_of_a_data_frame_may_be_empty(dd, pd, table, sums, expected):
    X, y, _ = table
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y)
    noise = pd.concat([frame.assign(keep=1), frame.assign(keep=0)], ignore_index=True)
    parts = dd.from_pandas(noise, npartitions=8)
    parts = parts[parts["keep"] == 1]
    chunks = chunks_of(parts[["a", "b", "c"]], parts["y"])
    close(Serial().reduce(sums, chunks), expected())
    assert len(list(chunks)) == 4


@pytest.mark.parametrize("engine", [Serial(), Threads(2)])
def test_an_error_gives_the_row_and_the_column(dd, pd, da, table, sums, engine):
    X, y, w = (values.copy() for values in table)
    X[777, 1] = np.nan
    w[555] = -1
    frame = dd.from_pandas(pd.DataFrame(X, columns=["a", "b", "c"]), npartitions=7)
    targets = da.from_array(y, chunks=300)
    with pytest.raises(ValueError, match="X has NaN in row 777, column 'b'"):
        engine.reduce(sums, chunks_of(frame, targets))
    with pytest.raises(ValueError, match="sample_weight must not be negative, got -1 in row 555"):
        engine.reduce(sums, chunks_of(frame, targets, da.from_array(w, chunks=300)))


def test_missing_values_and_text_in_a_data_frame(dd, pd, table):
    X, y, _ = table
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).astype({"c": "Float64"})
    frame.loc[432, "c"] = pd.NA
    targets = dd.from_pandas(pd.Series(y), npartitions=4)
    with pytest.raises(ValueError, match="X has NaN in row 432, column 'c'"):
        list(chunks_of(dd.from_pandas(frame, npartitions=4), targets))
    with pytest.raises(ValueError, match="X must be numbers, but column 'b' is of type"):
        chunks_of(dd.from_pandas(frame.assign(b="text"), npartitions=4), targets)
    days = dd.from_pandas(pd.Series(pd.Timestamp("2024-01-01"), index=range(1000), name="day"), npartitions=4)
    with pytest.raises(ValueError, match="y must be numbers, but column 'day' is of type datetime64"):
        chunks_of(dd.from_pandas(frame, npartitions=4), days)


def test_names_are_those_of_scikit_learn(dd, pd, table):
    X, y, _ = table
    targets = dd.from_pandas(pd.Series(y), npartitions=4)
    assert chunks_of(dd.from_pandas(pd.DataFrame(X), npartitions=4), targets).names is None
    twice = dd.from_pandas(pd.DataFrame(X), npartitions=4)
    twice.columns = ["a", "b", "a"]
    with pytest.raises(ValueError, match="X has more than one column 'a'"):
        chunks_of(twice, targets)
    named = dd.from_pandas(pd.DataFrame(X, columns=["a", "b", "y"]), npartitions=4)
    with pytest.raises(TypeError, match=r"X a DataFrame: give y as X\['y'\], and X without it"):
        chunks_of(named, "y")


def test_inconsistent_dask_data_raise(da, dd, pd, table):
    X, y, w = table
    blocks, targets = da.from_array(X), da.from_array(y)
    with pytest.raises(TypeError, match="y must be a Dask array or data frame as X is, got ndarray"):
        chunks_of(blocks, y)
    with pytest.raises(TypeError, match="sample_weight must be a Dask array or data frame as X is, got ndarray"):
        chunks_of(blocks, targets, w)
    with pytest.raises(TypeError, match="y is a Dask collection and X is not"):
        chunks_of(X, targets)
    with pytest.raises(TypeError, match="y is missing"):
        chunks_of(blocks)
    with pytest.raises(ValueError, match="X must have shape n x d"):
        chunks_of(targets, targets)
    with pytest.raises(ValueError, match="y must have shape n, one number for each row"):
        chunks_of(blocks, blocks)
    with pytest.raises(ValueError, match="same number of rows, got 1000 and 990"):
        list(chunks_of(blocks, targets[:990]))
    with pytest.raises(ValueError, match="X is empty"):
        list(chunks_of(blocks[blocks[:, 0] > 1e6], targets[targets > 1e6]))
    frame = dd.from_pandas(pd.DataFrame(X), npartitions=4)
    with pytest.raises(ValueError, match="same number of rows, got 1000 and 500"):
        list(chunks_of(frame, dd.from_pandas(pd.Series(y[:500]), npartitions=4)))
