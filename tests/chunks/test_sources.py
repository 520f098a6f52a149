from __future__ import annotations

import numpy as np
import pytest
import torch

from rcgp.chunks import Serial, chunks_of, engine_for


def close(got, wanted):
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-12, atol=1e-10)


def as_memmap(tmp_path, values, dtype):
    path = tmp_path / f"{values.ndim}.bin"
    values.astype(dtype).tofile(path)
    return np.memmap(path, dtype=dtype, mode="r", shape=values.shape)


@pytest.mark.parametrize("rows", [1, 7, 256, 1000, 5000, None])
def test_any_chunking_gives_the_same_sums(table, sums, expected, rows):
    X, y, w = table
    chunks = chunks_of(X, y, w, rows=rows)
    close(Serial().reduce(sums, chunks), expected(weighted=True))
    assert len(list(chunks)) == -(-1000 // (rows or 16_384))


@pytest.mark.parametrize("kind", [torch.tensor, np.asfortranarray, np.ndarray.tolist, lambda v: v[::-1].copy()[::-1]])
def test_arrays_of_any_kind(table, sums, expected, kind):
    X, y, w = table
    close(Serial().reduce(sums, chunks_of(kind(X), kind(y), kind(w), rows=300)), expected(weighted=True))


def test_data_frames_keep_their_names(table, sums, expected, pd):
    X, y, w = table
    frame = pd.DataFrame(X, columns=["a", "b", "c"], index=np.arange(1000)[::-1])
    chunks = chunks_of(frame, pd.Series(y), pd.Series(w), rows=300)
    assert chunks.names == ("a", "b", "c")
    assert chunks.columns == 3
    close(Serial().reduce(sums, chunks), expected(weighted=True))


def test_arrays_have_no_names(table):
    assert chunks_of(*table).names is None


@pytest.mark.parametrize("dtype", ["float32", "int16", "bool", "float64"])
def test_a_chunk_is_float64_whatever_the_type_of_a_memmap(tmp_path, table, sums, dtype):
    X, y = ((3 * values).round().astype(dtype) for values in table[:2])
    chunks = chunks_of(as_memmap(tmp_path, X, dtype), as_memmap(tmp_path, y, dtype), rows=300)
    assert all(chunk.X.dtype == chunk.y.dtype == torch.float64 for chunk in chunks)
    close(Serial().reduce(sums, chunks), Serial().reduce(sums, chunks_of(X.astype(float), y.astype(float))).numpy())


@pytest.mark.parametrize("mode", ["r+", "c"])
def test_changes_of_a_memmap_are_read_and_kept(tmp_path, table, mode):
    X, y, _ = table
    as_memmap(tmp_path, X, "float64")
    mapped = np.memmap(tmp_path / "2.bin", dtype=float, mode=mode, shape=X.shape)
    mapped[500, 1] = 77.0
    chunks = chunks_of(mapped, y, rows=100)
    for _ in range(2):
        assert sum(float((chunk.X == 77.0).sum()) for chunk in chunks) == 1
    assert mapped[500, 1] == 77.0


def test_a_task_cannot_change_the_data(table):
    X, y, w = (values.copy() for values in table)
    for kind in (np.asarray, torch.from_numpy):
        for chunk in chunks_of(kind(X), kind(y), kind(w)):
            for values in chunk[:3]:
                values.zero_()
    for values, before in zip((X, y, w), table, strict=True):
        assert np.array_equal(values, before)


def test_chunks_carry_no_gradients(table):
    X = torch.tensor(table[0], requires_grad=True)
    assert not next(iter(chunks_of(X, table[1]))).X.requires_grad


def test_default_chunks_are_bounded_in_rows_and_bytes():
    tall = chunks_of(np.zeros((40_000, 2)), np.zeros(40_000))
    assert [len(chunk.y) for chunk in tall] == [16_384, 16_384, 7_232]
    wide = chunks_of(np.zeros((300, 50_000), np.int8), np.zeros(300))
    assert max(chunk.X.nbytes for chunk in wide) <= 32 * 2**20


# Pairs.


def pieces_of(table, sizes):
    ends = np.cumsum(sizes)
    return [tuple(values[end - size : end] for values in table) for end, size in zip(ends, sizes, strict=True)]


@pytest.mark.parametrize("sizes", [(1000,), (1, 998, 1), (0, 400, 0, 600, 0)])
@pytest.mark.parametrize("count", [2, 3])
def test_pairs_and_triples(table, sums, expected, sizes, count):
    pairs = pieces_of(table[:count], sizes)
    for source in (pairs, tuple(pairs)):
        chunks = chunks_of(source, rows=150)
        assert len(list(chunks)) == sum(-(-size // 150) for size in sizes)
        for _ in range(2):
            close(Serial().reduce(sums, chunks), expected(weighted=count == 3))


class Again:
    """Pieces from a generator that starts again."""

    def __init__(self, pairs):
        self.pairs, self.passes = pairs, 0

    def __iter__(self):
        self.passes += 1
        yield from self.pairs


def test_an_object_whose_iter_starts_again(table, sums, expected):
    chunks = chunks_of(Again(pieces_of(table[:2], (400, 600))))
    for engine in (Serial(), engine_for(chunks, threads=2)):
        close(engine.reduce(sums, chunks), expected())
    assert len(list(chunks)) == 2
    assert chunks.columns == 3


def test_pairs_of_data_frames_have_names(table, pd):
    X, y, _ = table
    assert chunks_of([(pd.DataFrame(X, columns=list("abc")), pd.Series(y))]).names == ("a", "b", "c")


@pytest.mark.parametrize("columns", [["b", "a", "c"], ["a", "b", "d"], [0, 1, 2], None])
@pytest.mark.parametrize("threads", [None, 2])
def test_pairs_with_other_columns_raise(table, pd, sums, columns, threads):
    X, y, _ = table
    first = pd.DataFrame(X[:400], columns=["a", "b", "c"])
    second = X[400:] if columns is None else pd.DataFrame(X[400:], columns=columns)
    chunks = chunks_of([(first, y[:400]), (second, y[400:])])
    with pytest.raises(
        ValueError, match=r"columns of X must be those of the first pair, \['a', 'b', 'c'\].* row 400 on"
    ):
        engine_for(chunks, threads=threads).reduce(sums, chunks)


def test_columns_without_text_labels_have_no_names(table, pd):
    X, y, _ = table
    frame = pd.DataFrame(X)
    assert chunks_of(frame, y).names is None
    assert chunks_of([(frame, y)]).names is None
    with pytest.raises(TypeError, match=r"must all be text, or none, got \['a', 1, 2\]"):
        chunks_of(frame.rename(columns={0: "a"}), y)
    with pytest.raises(ValueError, match="X has more than one column 'a'"):
        chunks_of(frame.set_axis(["a", "b", "a"], axis=1), y)


def test_an_iterator_raises(table):
    pairs = pieces_of(table[:2], (400, 600))
    for source in ((pair for pair in pairs), iter(pairs), map(tuple, pairs)):
        with pytest.raises(TypeError, match=r"pass a list, or an object whose iter\(\) starts again"):
            chunks_of(source)


def test_a_changed_source_raises(table, sums):
    source = Again(pieces_of(table[:2], (400, 600)))
    chunks = chunks_of(source)
    Serial().reduce(sums, chunks)
    source.pairs = source.pairs[:1]
    with pytest.raises(ValueError, match="X had 1000 rows in the first pass and 400 now"):
        Serial().reduce(sums, chunks)


# What is wrong, and where.


def broken(table, argument, row, value, column=1):
    copies = [values.copy() for values in table]
    copies[argument][(row, column) if argument == 0 else row] = value
    return copies


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        (0, np.nan, "X has NaN in row 777, column 1"),
        (0, -np.inf, "X has -inf in row 777, column 1"),
        (1, np.nan, "y has NaN in row 777;"),
        (2, np.inf, "sample_weight has inf in row 777"),
        (2, -0.5, "sample_weight must not be negative, got -0.5 in row 777"),
    ],
)
@pytest.mark.parametrize("rows", [50, 1000])
@pytest.mark.parametrize("threads", [None, 3])
def test_errors_number_the_row_in_the_whole_table(table, sums, argument, value, message, rows, threads):
    wrong = broken(table, argument, 777, value)
    for chunks in (chunks_of(*wrong, rows=rows), chunks_of(pieces_of(wrong, (300, 700)), rows=rows)):
        with pytest.raises(ValueError, match=message):
            engine_for(chunks, threads=threads).reduce(sums, chunks)


@pytest.mark.parametrize("rows", [50, 400, 1000])
@pytest.mark.parametrize("threads", [None, 3])
@pytest.mark.parametrize(
    ("first", "message"),
    [
        ((0, np.nan), "X has NaN in row 333"),
        ((1, np.nan), "y has NaN in row 333"),
        ((2, np.nan), "sample_weight has NaN in row 333"),
        ((2, -1.0), "sample_weight must not be negative, got -1 in row 333"),
    ],
)
def test_the_first_bad_row_of_any_argument_is_named(table, sums, first, message, rows, threads):
    for argument, value, row in ((0, np.nan, 350), (1, np.inf, 340), (2, -2.0, 345), (2, np.nan, 900)):
        table = broken(table, argument, row, value)
    chunks = chunks_of(*broken(table, first[0], 333, first[1]), rows=rows)
    with pytest.raises(ValueError, match=f"^{message}"):
        engine_for(chunks, threads=threads).reduce(sums, chunks)


def test_bad_rows_read_so_far_are_counted(table):
    X, y, _ = table
    X = X.copy()
    X[[70, 75, 99, 400], 1] = np.nan
    X[75, 2] = np.nan
    with pytest.raises(ValueError, match=r"X has NaN in row 70, column 1 \(3 bad rows among 50 to 99\); drop"):
        list(chunks_of(X, y, rows=50))


def test_large_numbers_whose_sum_overflows_are_finite(table, sums):
    X, y, _ = table
    chunks = chunks_of(X, np.full(1000, 1e308))
    assert float(next(iter(chunks)).y.max()) == 1e308
    wrong = np.full(1000, 1e308)
    wrong[3] = np.nan
    with pytest.raises(ValueError, match="y has NaN in row 3"):
        list(chunks_of(X, wrong))
    assert np.isfinite(y).all()


def test_an_error_names_the_column(table, pd):
    X, y, _ = broken(table, 0, 900, np.nan, column=2)
    frame = pd.DataFrame(X, columns=["age", "b", "size"])
    with pytest.raises(ValueError, match="X has NaN in row 900, column 'size'"):
        list(chunks_of(frame, y, rows=64))
    missing = frame.astype({"age": "Float64"}).assign(size=0.0)
    missing.loc[123, "age"] = pd.NA
    with pytest.raises(ValueError, match="X has NaN in row 123, column 'age'"):
        list(chunks_of(missing, y, rows=64))
    text = frame.assign(b=["x"] * 1000)
    with pytest.raises(ValueError, match="X cannot be read as numbers in rows 0 to 63, column 'b'"):
        list(chunks_of(text, y, rows=64))
    dates = frame[["age"]].assign(day=pd.Timestamp("2024-01-01"))
    for columns in (["age", "day"], ["day"]):
        with pytest.raises(ValueError, match="X cannot be read as numbers in rows 0 to 999"):
            list(chunks_of(dates[columns], y))


def test_masked_values_are_missing(table):
    X, y, _ = table
    with pytest.raises(ValueError, match="X has NaN in row 5, column 0"):
        list(chunks_of(np.ma.masked_array(X, np.arange(3000).reshape(1000, 3) == 15), y))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros(5), np.zeros(5)), r"X must have shape n x d, with rows and columns, got \(5,\)"),
        ((np.zeros((5, 2)), np.zeros((5, 1))), r"y must have shape n, one number for each row, got \(5, 1\)"),
        ((np.zeros((5, 2)), np.zeros(4)), "X and y must have the same number of rows, got 5 and 4"),
        ((np.zeros((5, 2)), np.zeros(5), np.zeros(6)), "X and sample_weight must have the same number of rows"),
        ((np.zeros((0, 2)), np.zeros(0)), "X is empty: it has 0 rows and 2 columns"),
        ((np.zeros((3, 0)), np.zeros(3)), "X is empty: it has 3 rows and 0 columns"),
        (([],), "X is empty"),
        (([(np.zeros((5, 2)), np.zeros(5)), (np.zeros((5, 3)), np.zeros(5))],), "2 columns in all .* 3 from row 5 on"),
        (([(np.zeros((5, 2)), np.zeros(5)), (np.zeros((5, 2)), np.zeros(4))],), "got 5 and 4 from row 5 on"),
        (([(np.zeros((5, 2)), np.zeros((5, 1)))],), "y must have shape n"),
        ((np.array([["a", "b"]]), np.zeros(1)), "X cannot be read as numbers in rows 0 to 0, column 0"),
        ((np.zeros((2, 1), complex), np.zeros(2)), "X cannot be read as numbers .* complex128"),
        ((torch.zeros((2, 1), dtype=torch.complex64), np.zeros(2)), "X must be real"),
        (([[1.0, 2.0], [3.0]], [1.0, 2.0]), "X cannot be read as an array"),
        ((np.zeros((2, 1)), np.zeros(2), None, 0), "rows must be at least 1, got 0"),
    ],
)
def test_wrong_shapes_raise(arguments, message):
    X, y, weights, rows = (*arguments, *(None,) * (4 - len(arguments)))
    with pytest.raises(ValueError, match=message):
        list(chunks_of(X, y, weights, rows=rows))


@pytest.mark.parametrize(
    ("X", "options", "message"),
    [
        (np.zeros((5, 2)), {}, "y is missing: X is a ndarray"),
        (7, {}, "y is missing: X is a int"),
        ([np.zeros((5, 2))], {}, "pairs .* got ndarray"),
        ([(1, 2, 3, 4)], {}, "pairs .* got tuple of 4"),
        ([(np.zeros((5, 2)), np.zeros(5))], {"sample_weight": np.ones(5)}, "pass triples"),
        (np.zeros((5, 2)), {"y": np.zeros(5), "features": ["a"]}, "features= is for Parquet files"),
        ("a.parquet", {}, "y must be the name of a column"),
        ("a.parquet", {"y": "y", "sample_weight": np.ones(3)}, "sample_weight must be the name of a column"),
    ],
)
def test_wrong_types_raise(X, options, message):
    with pytest.raises(TypeError, match=message):
        chunks_of(X, **options)


class Once:
    """Chunks as pandas reads them from a file, one after the other."""

    def __iter__(self):
        return iter([np.zeros((5, 2))])


PAIRS = [(np.zeros((5, 2)), np.zeros(5))] * 2


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (PAIRS, np.zeros(10), r"X is in pieces, and y is also given: chunks are pairs \(X, y\).*leave y out"),
        ([np.zeros((5, 2))] * 2, [np.zeros(5)] * 2, "X is in pieces, and y is also given: .*leave y out"),
        (Once(), np.zeros(5), "X is in pieces, and y is also given: .*leave y out"),
        (
            lambda: iter(PAIRS),
            None,
            r"X is a function: chunks are pairs .* an object whose __iter__ calls the function",
        ),
        (np.zeros((5, 2)), "y", "y is the name 'y', which is for Parquet files, and X a ndarray: give y as an array"),
    ],
    ids=["pairs", "tables", "read once", "function", "a name"],
)
def test_mistakes_with_chunks_name_the_remedy(X, y, message):
    with pytest.raises(TypeError, match=message):
        chunks_of(X, y)


def test_a_name_as_y_of_a_data_frame_names_the_remedy(pd):
    frame = pd.DataFrame({"a": [1.0], "price": [2.0]})
    with pytest.raises(TypeError, match=r"X a DataFrame: give y as X\['price'\], and X without it"):
        chunks_of(frame, "price")


def test_a_sparse_matrix_raises():
    from scipy.sparse import csr_array

    with pytest.raises(TypeError, match=r"X must be dense, got csr_array; use X.toarray\(\)"):
        chunks_of(csr_array(np.eye(3)), np.zeros(3))
