"""Several targets in a table: cells may be empty where another one is not."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from rcgp.table import Column, Encoding, TableError, encode, learn_encoding

TABLE = pd.DataFrame({"x": ["1", "2", "3", "4"], "a": ["1", "", "3", ""], "b": ["5", "6", "", ""]}, index=range(1, 5))


def test_cells_may_be_empty_where_another_target_is_not():
    encoding, _ = learn_encoding(TABLE[:3], ["a", "b"])
    assert encoding.targets == ("a", "b")
    encoded = encode(TABLE[:3], encoding)
    np.testing.assert_array_equal(encoded.y, [[1.0, 5.0], [np.nan, 6.0], [3.0, np.nan]])
    assert list(encoded.y) == ["a", "b"]
    assert encode(TABLE, encoding, with_target=False).y is None


def test_a_row_without_any_target_is_refused_or_left_out():
    with pytest.raises(TableError, match=r"row 4 of column 'a' has no value, nor has any other target \(1 of 4 rows"):
        learn_encoding(TABLE, ["a", "b"])
    encoding, _ = learn_encoding(TABLE, ["a", "b"], missing="drop")
    encoded = encode(TABLE, encoding, missing="drop")
    assert (encoded.dropped, list(encoded.X.index)) == (1, [1, 2, 3])


def test_a_cell_that_is_no_number_is_refused_or_counts_as_missing():
    table = TABLE[:3].copy()
    table.loc[3, "b"] = "bad"
    with pytest.raises(TableError, match="row 3 of column 'b' is 'bad', which is not a number"):
        learn_encoding(table, ["a", "b"])
    encoding, _ = learn_encoding(table, ["a", "b"], missing="drop")
    encoded = encode(table, encoding, missing="drop")
    assert np.isnan(encoded.y.loc[3, "b"])
    assert encoded.notices == ["column 'b': row 3 ('bad') counts as missing, as it is not a number"]


def test_an_encoding_keeps_the_names_of_all_targets():
    encoding = Encoding("a", (Column("x", "number"),), further=("b", "c"))
    assert Encoding.from_json(encoding.to_json()) == encoding
    old = encoding.to_json()
    del old["further_targets"]
    assert Encoding.from_json(old).targets == ("a",)
    for further, message in (((1,), "must be text"), (("a",), "more than one of the targets"), (("x",), "features as")):
        with pytest.raises(TableError, match=message):
            Encoding("a", (Column("x", "number"),), further=further)


def test_targets_are_named_once_and_at_least_one():
    for targets, message in ((["a", "a"], "names 'a' more than once"), ([], "there is no target")):
        with pytest.raises(TableError, match=message):
            learn_encoding(TABLE, targets)
