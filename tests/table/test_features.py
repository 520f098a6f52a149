from __future__ import annotations

import datetime
import decimal
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rcgp.table import (
    Column,
    CsvFormat,
    Encoding,
    TableError,
    encode,
    learn_encoding,
    read_table,
    row_names,
    suspicious_inputs,
    suspicious_targets,
)


def table_of(*cells, **others):
    """A table as read from CSV: column x with these cells, a target y that counts, and others."""
    columns = {"x": [str(cell) for cell in cells], "y": [str(i) for i in range(len(cells))], **others}
    return pd.DataFrame(columns, index=pd.RangeIndex(1, len(cells) + 1), dtype="str")


def encoded(table, target="y", features=None, missing="error"):
    encoding, notices = learn_encoding(table, target, features, missing)
    return encode(table, encoding, missing), notices


def refused(message, table, target="y", features=None, missing="error"):
    with pytest.raises(TableError, match=message) as caught:
        learn_encoding(table, target, features, missing)
    assert "\n" not in str(caught.value)


# Numbers


def test_numbers_are_read_as_python_reads_them():
    cells = ["1", " 3 ", "-2.5", "+.5", "1.", "1e5", "1E-5", "0.1", "123456789.123456789", "5e-324", "007"]
    result, notices = encoded(table_of(*cells))
    assert list(result.X["x"]) == [float(cell) for cell in cells]
    assert list(result.y) == list(range(len(cells)))
    assert list(result.X.index) == list(result.y.index) == list(range(1, len(cells) + 1))
    assert (result.X.dtypes == np.float64).all()
    assert notices == result.notices == []


@pytest.mark.parametrize("cell", ["1_000", "0x1F", "٣", "1d5", "abc", "1.2.3", "12:30", "--1", "1e1.5", "."])
def test_a_bad_cell_among_numbers_is_named(cell):
    refused(f"row 3 of column 'x' is '{cell}', which is not a number: correct it", table_of(1, 2, cell))


@pytest.mark.parametrize("cell", ["inf", "-Infinity", "1e999", "-1e400", "∞"])
def test_a_number_that_is_not_finite_is_named(cell):
    refused(f"row 2 of column 'x' is '{cell}', which is not a finite number", table_of(1, cell, 2))


@pytest.mark.parametrize("cell", ["1,5", "1,234.5", "1.234,5", "-1,234,567", "1 000", "1'234.5", "1\u202f234,5"])
def test_decimal_commas_and_thousands_separators_are_refused_not_guessed(cell):
    refused("row 1 of column 'x'.*not a number.*decimal point and no thousands separators", table_of(cell, cell))


def test_half_of_the_cells_decide_that_a_column_is_numbers():
    refused(r"row 3 of column 'x' is 'a', which is not a number \(2 of its 4 cells are not\)", table_of(1, 2, "a", "a"))
    result, _ = encoded(table_of(1, "a", "a", "b"))
    assert list(result.X.columns) == ["x=1", "x=a", "x=b"]


def test_cells_are_shortened_and_escaped_in_messages():
    refused("'" + "a" * 39 + "…'", table_of(1, 2, "a" * 10_000))
    refused(r"'\\x1b\[31m'", table_of(1, 2, "\x1b[31m"))


# Dates

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("cell", "iso"),
    [
        ("2024-02-29", "2024-02-29T00:00Z"),
        ("2024-2-9", "2024-02-09T00:00Z"),
        ("2024/02/29", "2024-02-29T00:00Z"),
        ("2024.02.29", "2024-02-29T00:00Z"),
        ("2024-02", "2024-02-01T00:00Z"),
        ("0001-01-01", "0001-01-01T00:00Z"),
        ("9999-12-31 23:59:59", "9999-12-31T23:59:59Z"),
        ("1969-12-31T12:30", "1969-12-31T12:30Z"),
        ("2024-02-29T12:30:15.250Z", "2024-02-29T12:30:15.250Z"),
        ("2024-02-29 12:30:15+02:00", "2024-02-29T12:30:15+02:00"),
        ("2024-02-29T00:30-0530", "2024-02-29T00:30-05:30"),
        ("2024-02-29T00:30+05", "2024-02-29T00:30+05:00"),
        ("1 March 2024", "2024-03-01T00:00Z"),
        ("01-Mar-2024", "2024-03-01T00:00Z"),
        ("MAR 1, 2024", "2024-03-01T00:00Z"),
        ("Sept 1 2024 06:00", "2024-09-01T06:00Z"),
        ("2024 December 31", "2024-12-31T00:00Z"),
    ],
)
def test_dates_are_days_since_1970(cell, iso):
    expected = (datetime.datetime.fromisoformat(iso) - EPOCH) / datetime.timedelta(days=1)
    result, notices = encoded(table_of("1970-01-01", cell))
    assert result.X["x"].iloc[0] == 0.0
    assert result.X["x"].iloc[1] == pytest.approx(expected, rel=0, abs=1e-10)
    assert notices == ["column 'x': dates read as days since 1970-01-01"]


@pytest.mark.parametrize("cell", ["2023-02-29", "2024-13-01", "2024-00-10", "2024-01-00", "2024-01-01T24:00", "soon"])
def test_a_bad_cell_among_dates_is_named(cell):
    refused(f"row 3 of column 'x' is '{cell}', which is not a date", table_of("2024-01-01", "2024-01-02", cell))


@pytest.mark.parametrize("cell", ["03/04/2024", "25/12/2024", "3.4.2024", "03-04-2024", "3/4/24", "03/04/2024 10:00"])
def test_dates_whose_day_and_month_are_ambiguous_are_refused(cell):
    refused(f"row 1 of column 'x' is '{cell}', which is not an unambiguous date", table_of(cell, cell))


@pytest.mark.parametrize(("cell", "form"), [("3.4.2024", "%d.%m.%Y"), ("3/4/24 10:00", "%d/%m/%y")])
def test_the_format_of_ambiguous_dates_is_suggested(cell, form):
    refused(f"use --date-format '{form}'", table_of(cell, cell))


# Categories


def test_a_category_gives_one_feature_for_each_level_in_order():
    result, notices = encoded(table_of("red", "blue", "green", " red "))
    assert list(result.X.columns) == ["x=blue", "x=green", "x=red"]
    assert result.X.to_numpy().tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert notices == ["column 'x': 3 categories, a feature for each: 'blue', 'green', 'red'"]


def test_two_levels_give_one_feature():
    result, notices = encoded(table_of("yes", "no", "yes"))
    assert result.X.to_dict("list") == {"x=yes": [1, 0, 1]}
    assert notices == ["column 'x': 2 categories, read as 0 for 'no' and 1 for 'yes'"]


def test_truth_values_are_the_same_levels_however_they_are_written():
    encoding, _ = learn_encoding(table_of("True", "FALSE", "true"), "y")
    assert encoding.columns == (Column("x", "category", ("false", "true")),)
    booleans = pd.DataFrame({"x": [True, False]})
    assert list(encode(booleans, encoding, with_target=False).X["x=true"]) == [1, 0]


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ([f"k{i % 51}" for i in range(510)], "holds 51 different texts in 510 rows"),
        ([f"id{i}" for i in range(9)], "holds 9 different texts in 9 rows"),
        ([""] * 9, "has no values at all"),
    ],
)
def test_columns_that_cannot_be_used_are_left_out_unless_asked_for(cells, reason):
    table = table_of(*cells, z=[str(i) for i in range(len(cells))])
    encoding, notices = learn_encoding(table, "y")
    assert encoding.feature_names == ["z"]
    assert notices[0].startswith(f"column 'x': left out, as it {reason}")
    with pytest.raises(TableError, match=reason):
        learn_encoding(table, "y", ["x", "z"])
    with pytest.raises(TableError, match=f"no column to predict 'y' from: column 'x': left out, as it {reason}"):
        learn_encoding(table.drop(columns="z"), "y")


def test_fifty_categories_are_not_too_many():
    result, _ = encoded(table_of(*[f"k{i % 50}" for i in range(100)]))
    assert result.X.shape == (100, 50)


def test_columns_are_left_out_by_name():
    table = table_of("1", "2", "3", z=["4", "5", "6"])
    assert learn_encoding(table, "y", exclude=["x"])[0].feature_names == ["z"]
    with pytest.raises(TableError, match="there is no column 'w'"):
        learn_encoding(table, "y", exclude=["w"])
    with pytest.raises(TableError, match="no column to predict"):
        learn_encoding(table, "y", exclude=["x", "z"])


@pytest.mark.parametrize("cell", ["$10.50", "12 €", "15%", "£ 3"])
def test_numbers_with_a_unit_are_refused_with_advice(cell):
    refused(f"is {re.escape(repr(cell))}, which is not a number.*without its unit", table_of(cell, cell, "3"))


def test_a_shared_unit_is_named():
    cells = ["12 kg", "3.5 kg", "7kg", "9"]
    for options in ({}, {"missing": "drop"}, {"target": "x", "features": ["y"]}):
        refused("row 1 of column 'x' is '12 kg', which is not a number.*without its unit", table_of(*cells), **options)
    assert encoded(table_of("2wd", "4wd", "4wd"))[0].X.shape == (3, 1)  # two categories
    assert encoded(table_of("1a", "2b", "3c"))[0].X.shape == (3, 3)


def test_a_typographic_minus_is_a_minus():
    result, _ = encoded(table_of("−1.5", "2", "1e−3", "–", "3"), missing="drop")
    assert list(result.X["x"]) == [-1.5, 2, 0.001, 3]


def test_a_column_that_counts_the_rows_is_used_with_a_notice():
    table = table_of(*range(11, 17), z=["4", "5", "6", "1", "2", "9"])
    encoding, notices = learn_encoding(table, "z", exclude=["y"])
    assert (encoding.feature_names, notices) == (["x"], [])  # the only input
    _, notices = learn_encoding(table, "y")
    assert notices == ["column 'x': a different whole number in each row; if it only names the rows, use --id x"]
    assert learn_encoding(table, "y", ["x", "z"])[1] == []


@pytest.mark.parametrize("cell", ["none", "-", "?"])
def test_among_categories_none_may_be_one(cell):
    encoding, _ = learn_encoding(table_of(cell, "brick", "stone"), "y")
    assert f"x={cell}" in encoding.feature_names


def test_a_level_that_the_training_table_did_not_have_is_named():
    encoding, _ = learn_encoding(table_of("red", "blue", "red"), "y")
    with pytest.raises(TableError, match=r"row 2 of column 'x' is 'pink'.*knows only 'blue', 'red'"):
        encode(table_of("red", "pink"), encoding)


def test_features_that_would_share_a_name_are_refused():
    table = table_of("b=c", "d", "e", **{"x=b": ["c", "f", "g"]})
    refused("called 'x=b=c': rename", table)


# The choice of columns


def test_an_error_for_an_unknown_column_names_similar_ones():
    table = table_of(1, 2, Size=["1", "2"])
    refused(r"no column 'SIZE': did you mean 'Size'\? \(the columns are 'x', 'y', 'Size'\)", table, target="SIZE")
    refused("no column 'colour' .the columns are 'x', 'y', 'Size'", table, features=["x", "colour"])
    many = table_of(1, 2, **{f"column {i}": ["1", "2"] for i in range(40)})
    refused("no column 'zzz' .the columns are .* and 32 more", many, target="zzz")
    refused("'1.5', '2'.: the first line must be a header", pd.DataFrame({"1.5": [1, 2], "2": [3, 4]}))


def test_features_choose_and_order_the_columns():
    table = table_of(1, 2, b=["3", "4"], name=["", "x"])
    result, _ = encoded(table, features=["b", "x"])
    assert list(result.X.columns) == ["b", "x"]


def test_a_choice_of_columns_that_makes_no_sense_is_refused():
    table = table_of(1, 2)
    refused("the target 'y' cannot be one of the features", table, features=["x", "y"])
    refused("no column to predict 'y' from", table, features=[])
    refused("no column to predict 'y' from", table[["y"]])
    refused("name 'x' more than once", table, features=["x", "x"])
    refused("more than one column is called 'x'", pd.concat([table, table[["x"]]], axis=1))
    refused("column names must be text, got '0'", pd.DataFrame({0: [1, 2], "y": [1, 2]}))
    refused("missing must be 'drop', 'error', got 'keep'", table, missing="keep")


def test_a_column_without_a_name_is_used_with_a_notice():
    table = table_of(1, 2).rename(columns={"x": "Unnamed: 0"})
    _, notices = learn_encoding(table, "y")
    assert notices == ["column 'Unnamed: 0': has no name in the file; if it counts rows, leave it out with --exclude"]
    assert learn_encoding(table, "y", ["Unnamed: 0"])[1] == []


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["red", "blue"], "must be a column of numbers, but 'x' holds text such as 'red'"),
        (["2024-01-01", "2024-01-02"], "must be a column of numbers, but 'x' holds dates"),
        (["3", "3.0"], "every value of 'x' is 3.0: there is nothing to predict"),
        (["3"], "only one usable row"),
    ],
)
def test_a_target_that_cannot_be_predicted_is_refused(cells, message):
    refused(message, table_of(*cells), target="x")


def test_a_target_of_text_is_refused_before_a_value_that_is_missing_elsewhere():
    table = table_of("cheap", "", "dear").assign(size=["", "1", "2"])
    refused("the target must be a column of numbers, but 'x' holds text such as 'cheap'", table, target="x")


@pytest.mark.parametrize("cell", ["3", "2024-01-01", "red"])
def test_a_constant_feature_is_kept_with_a_notice(cell):
    result, notices = encoded(table_of(cell, cell))
    assert result.X.shape == (2, 1)
    assert "it carries no information; kept" in notices[-1]


# Missing values


@pytest.mark.parametrize(
    "cell", ["", "  ", "NA", "N/A", "nan", "NaN", "null", "NULL", "None", "-", "?", "#N/A", "<NA>"]
)
def test_missing_values_are_refused_or_dropped(cell):
    table = table_of(1, cell, 3, cell)
    refused(r"row 2 of column 'x' has no value \(2 of 4 rows lack one\).*--missing drop", table)
    result, notices = encoded(table, missing="drop")
    assert list(result.X.index) == list(result.y.index) == [1, 3]
    assert list(result.X["x"]) == [1, 3]
    assert result.dropped == 2
    assert result.notices == ["2 of 4 rows left out: they lack a value"]
    assert notices == []


def test_what_stands_in_dropped_rows_does_not_matter():
    table = table_of("red", "blue", "pink", "red", z=["1", "2", "", "4"])
    encoding, _ = learn_encoding(table, "y", missing="drop")
    assert encoding.feature_names == ["x=red", "z"]
    assert list(encode(table, encoding, "drop").X.index) == [1, 2, 4]


def test_a_table_of_which_nothing_is_left_is_refused():
    refused("'x': left out, as it has no values at all", table_of("", ""), missing="drop")
    refused("every row lacks a value", table_of("", 1, z=["1", ""]), missing="drop")
    refused("only one usable row", table_of("", 1), missing="drop")
    refused("the table has no rows", table_of())


def test_prediction_needs_no_target_and_takes_one_row():
    encoding, _ = learn_encoding(table_of(1, 2, "3"), "y")
    new = table_of(5, "", 7)
    new["y"] = "unknown"
    result = encode(new, encoding, "drop", with_target=False)
    assert result.y is None
    assert list(result.X.index) == [1, 3]
    assert list(encode(new.loc[[3], ["x"]], encoding, with_target=False).X["x"]) == [7]
    with pytest.raises(TableError, match="row 1 of column 'y' is 'unknown', which is not a number"):
        encode(new.loc[[1]], encoding)
    with pytest.raises(TableError, match="no column 'x'"):
        encode(new[["y"]], encoding, with_target=False)


# Parquet


def from_parquet(tmp_path, values):
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"x": values, "y": pa.array([float(i) for i in range(len(values))])}), path)
    return read_table(path)


NATIVE = {
    "int64": (pa.array([1, -2, 2**53]), [1.0, -2.0, 2.0**53]),
    "uint8": (pa.array([1, 2, 255], pa.uint8()), [1.0, 2.0, 255.0]),
    "float16": (pa.array([1.5, 2.5, 3.5], pa.float16()), [1.5, 2.5, 3.5]),
    "float32": (pa.array([0.1, 2.5, 3.5], pa.float32()), [float(np.float32(0.1)), 2.5, 3.5]),
    "decimal": (pa.array([decimal.Decimal("0.10"), decimal.Decimal("123.45")]), [0.1, 123.45]),
    "bool": (pa.array([True, False, True]), [1.0, 0.0, 1.0]),
    "date32": (pa.array([datetime.date(1970, 1, 2), datetime.date(1969, 12, 31)]), [1.0, -1.0]),
    "date64": (pa.array([0, 86_400_000], pa.date64()), [0.0, 1.0]),
    "timestamp": (pa.array([datetime.datetime(1970, 1, 2, 6), datetime.datetime(1960, 1, 1, 6)]), [1.25, -3652.75]),
    "nanoseconds with zone": (pa.array([0, 43_200 * 10**9], pa.timestamp("ns", "Europe/Berlin")), [0.0, 0.5]),
    "nanoseconds of a whole day": (pa.array([19782 * 86_400 * 10**9, 0], pa.timestamp("ns")), [19782.0, 0.0]),
    "dictionary of text": (pa.array(["a", "b", "a"]).dictionary_encode(), [0.0, 1.0, 0.0]),
    "dictionary of numbers": (pa.array([1, 2, 1]).dictionary_encode(), [1.0, 2.0, 1.0]),
    "large text": (pa.array(["1", " 2.5 "], pa.large_string()), [1.0, 2.5]),
}


@pytest.mark.parametrize("name", NATIVE)
def test_parquet_types_are_read_natively(name, tmp_path):
    values, expected = NATIVE[name]
    result, _ = encoded(from_parquet(tmp_path, values))
    assert result.X.iloc[:, 0].tolist() == expected


def test_doubles_of_parquet_are_bit_exact(tmp_path):
    values = np.array([0.1, -0.0, 5e-324, 1.7976931348623157e308, 1 / 3])
    result, _ = encoded(from_parquet(tmp_path, pa.array(values)))
    assert result.X["x"].to_numpy().tobytes() == values.tobytes()


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, None, 3]),
        pa.array([1.0, float("nan"), 3.0]),
        pa.array(["a", None, "b"]),
        pa.array([True, None, False]),
        pa.array([0, None, 1], pa.timestamp("us")),
        pa.array(["a", None, "b"]).dictionary_encode(),
    ],
    ids=lambda values: str(values.type)[:12],
)
def test_missing_values_of_parquet_are_missing(values, tmp_path):
    table = from_parquet(tmp_path, values)
    refused(r"row 2 of column 'x' has no value", table)
    assert list(encoded(table, missing="drop")[0].X.index) == [1, 3]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([b"a", b"b"]),
        pa.array([[1], [2]]),
        pa.array([{"a": 1}, {"a": 2}]),
        pa.array([1, 2], pa.duration("s")),
        pa.array([1, 2], pa.time32("s")),
    ],
    ids=lambda values: str(values.type)[:12],
)
def test_columns_that_are_neither_numbers_dates_nor_text_may_only_be_left_out(values, tmp_path):
    table = from_parquet(tmp_path, values).assign(z=[1, 2])
    refused("column 'x' holds values of type .*leave it out with --exclude", table)
    assert encoded(table, features=["z"])[0].X.shape == (2, 1)


def test_other_objects_of_pandas_are_refused_too():
    refused("column 'x' holds values of mixed types", pd.DataFrame({"x": [1, "a", []], "y": [1, 2, 3]}))
    refused("column 'x' holds values of type 'complex128'", pd.DataFrame({"x": [1j, 2j], "y": [1, 2]}))


def test_infinity_in_parquet_is_named(tmp_path):
    refused(
        "row 2 of column 'x' is '-inf', which is not a finite number", from_parquet(tmp_path, pa.array([1.0, -np.inf]))
    )


def test_a_model_of_a_csv_file_reads_parquet_and_the_other_way_round(tmp_path):
    text = table_of("2024-01-01", "2024-01-02", z=["1", "2"], c=["a", "b"])
    native = text.assign(x=pd.to_datetime(text["x"]), z=[1, 2], y=[0.0, 1.0])
    path = tmp_path / "data.parquet"
    native.to_parquet(path)
    from_text, from_native = learn_encoding(text, "y")[0], learn_encoding(read_table(path), "y")[0]
    assert from_text == from_native
    pd.testing.assert_frame_equal(encode(text, from_native).X, encode(read_table(path), from_text).X)


@pytest.mark.parametrize(
    ("column", "wanted"), [(Column("x", "number"), "numbers"), (Column("x", "category", ("a",)), "text")]
)
def test_a_column_of_another_type_than_in_training_is_refused(column, wanted):
    table = pd.DataFrame({"x": pd.to_datetime(["2024-01-01"])})
    with pytest.raises(TableError, match=f"column 'x' holds values of type timestamp.*trained with {wanted}"):
        encode(table, Encoding("y", (column,)), with_target=False)
    with pytest.raises(TableError, match="trained with dates"):
        encode(pd.DataFrame({"x": [1.0]}), Encoding("y", (Column("x", "date"),)), with_target=False)


def test_rows_with_the_same_label_are_kept_apart():
    table = pd.DataFrame({"x": [1.0, np.nan, 3.0], "y": [1.0, 2.0, 3.0]}, index=[7, 7, 7])
    assert list(encoded(table, missing="drop")[0].X["x"]) == [1.0, 3.0]


# Formats, ids, cells that are no numbers, suspicious inputs


def test_a_decimal_comma_is_read_when_stated():
    table = table_of("1,5", "-2,5e3", "7")
    refused(r"or use --decimal ,", table)
    encoding, _ = learn_encoding(table, "y", form=CsvFormat(decimal=","))
    assert list(encode(table, encoding).X["x"]) == [1.5, -2500.0, 7.0]
    with pytest.raises(TableError, match=r"'1.5', which is not a number: write a decimal comma"):
        encode(table_of("1.5"), encoding, with_target=False)


def test_dates_are_read_in_the_stated_format_and_numbers_stay_numbers():
    table = table_of("03/04/2024", "31/12/2024", z=["123456", "20240101"], iso=["2024-04-03", "2024-12-31"])
    refused("or use --date-format '%d/%m/%Y'", table)
    encoding, _ = learn_encoding(table, "y", form=CsvFormat(date_format="%d/%m/%Y"))
    X = encode(table, encoding).X
    assert [column.kind for column in encoding.columns] == ["date", "number", "date"]
    assert list(X["x"]) == list(X["iso"])
    compact, _ = learn_encoding(
        table_of("123456", "99", z=["20240403", "20241231"]), "y", form=CsvFormat(date_format="%Y%m%d")
    )
    assert [column.kind for column in compact.columns] == ["number", "date"]
    with pytest.raises(TableError, match="--date-format '%Q' is not a format"):
        learn_encoding(table, "y", form=CsvFormat(date_format="%Q"))


def test_an_encoding_remembers_format_id_and_log():
    encoding = Encoding("y", (Column("x", "number"),), CsvFormat("cp1252", ";", ",", "%d.%m.%Y"), "name", True)
    assert Encoding.from_json(encoding.to_json()) == encoding
    for field, value in (("format", {"decimal": ";"}), ("format", None), ("id", 3), ("log", "yes")):
        with pytest.raises(TableError):
            Encoding.from_json(encoding.to_json() | {field: value})


def test_cells_that_are_not_numbers_count_as_missing_with_drop():
    table = table_of(1, "abc", 3, "inf", 5, when=["2024-01-01", "2024-01-02", "soon", "2024-01-04", "2024-01-05"])
    refused("row 2 of column 'x' is 'abc', which is not a number.*--missing drop", table)
    result, _ = encoded(table, missing="drop")
    assert list(result.X.index) == [1, 5]
    assert result.notices == [
        "column 'x': row 2 ('abc'), row 4 ('inf') count as missing, as they are not numbers",
        "column 'when': row 3 ('soon') counts as missing, as it is not a date",
        "3 of 5 rows left out: they lack a value",
    ]
    refused("or use --decimal ,", table_of("1,5", "2,5", 3), missing="drop")  # most of them: that is no accident


@pytest.mark.parametrize("cells", [["0", "1", "5"], ["3", "1", "2"], ["Mazda", "Fiat", "Volvo"]])
def test_a_first_column_without_a_name_that_differs_in_each_row_names_the_rows(cells):
    table = table_of(*cells, z=["4", "5", "6"]).rename(columns={"x": "Unnamed: 0"})
    encoding, notices = learn_encoding(table, "y")
    assert (encoding.feature_names, encoding.row_id) == (["z"], "Unnamed: 0")
    assert "names the rows and is not a feature" in notices[0]
    assert list(row_names(table, encoding.row_id)) == cells
    assert learn_encoding(table, "y", ["Unnamed: 0"])[0].row_id is None
    assert learn_encoding(table, "y", exclude=["Unnamed: 0"])[0].row_id is None


@pytest.mark.parametrize("cells", [["0.5", "1", "2"], ["1", "1", "2"], ["1", "", "2"]])
def test_other_columns_without_a_name_are_features(cells):
    table = table_of(*cells, z=["4", "5", "6"]).rename(columns={"x": "Unnamed: 0"})
    assert learn_encoding(table, "y", missing="drop")[0].feature_names == ["Unnamed: 0", "z"]


def test_the_id_is_no_feature():
    table = table_of(1, 2, 3, z=["4", "5", "6"])
    encoding, _ = learn_encoding(table, "y", row_id="x")
    assert (encoding.feature_names, encoding.row_id) == (["z"], "x")
    for options, message in (
        ({"row_id": "w"}, "no column 'w'"),
        ({"row_id": "y"}, "cannot be the target"),
        ({"row_id": "x", "features": ["x"]}, "or a feature"),
    ):
        with pytest.raises(TableError, match=message):
            learn_encoding(table, "y", **options)


@pytest.mark.parametrize(
    ("values", "noted"),
    [
        (range(11, 31), True),
        ([17, 11, 14, 12, 19, 13, 16, 15, 18, 10], True),  # in any order
        ([*range(1, 40), *range(45, 85)], True),  # with gaps
        ([5 * i for i in range(80)], False),  # a design
        ([1, 2, 3, 4, 5, 5], False),
        ([10, 52_000, 31_000, 77_000, 64_000], False),  # no repetition by chance
        ([i + 0.5 for i in range(20)], False),
    ],
)
def test_whole_numbers_that_name_the_rows_are_noted(values, noted):
    table = pd.DataFrame({"no": list(values), "x": np.sin(np.arange(len(values)))}).assign(y=lambda t: t["x"] ** 2)
    table.index += 1
    _, notices = learn_encoding(table, "y")
    assert any("a different whole number in each row" in notice and "--id no" in notice for notice in notices) is noted


@pytest.mark.parametrize(
    ("cells", "noted"),
    [
        (["0123", "0123", "4567", "0089"], True),
        (["01", "12", "07"], False),
        (["007", "12", "3"], False),
        (["0.5", "012"], False),
    ],
)
def test_codes_that_are_read_as_numbers_are_noted(cells, noted):
    _, notices = encoded(table_of(*cells, "4567" if noted else "10"))
    assert any(f"look like codes ({cells[0]!r}, {cells[-1]!r})" in notice for notice in notices) is noted


def test_cells_between_spaces_get_a_remedy():
    with pytest.raises(TableError, match=r"no column 'y' .* separate cells by a comma, a semicolon, a tab or a bar"):
        learn_encoding(pd.DataFrame({"x y": ["1 2", "3 4"]}, index=[1, 2]), "y")


def test_a_target_of_two_classes_and_one_that_is_a_line_of_a_feature_are_noted():
    x = np.sin(np.arange(30.0))
    X = pd.DataFrame({"x": x, "fahrenheit": 32.0 + 1.8 * x**3, "same": 5.0})
    Y = pd.DataFrame({"class": np.arange(30) % 2, "celsius": x**3, "other": x**2})
    two, line = suspicious_targets(X, Y)
    assert two.startswith("the target 'class' has two values, 0 and 1, which are probably classes")
    assert line.startswith("the target 'celsius' is a linear function of column 'fahrenheit'")
    assert suspicious_targets(X, Y.head(10)) == []
    Y.loc[3, "celsius"] += 1e-6
    assert suspicious_targets(X, Y[["celsius"]]) == []


def test_suspicious_inputs_are_listed_with_row_and_value():
    random = np.random.default_rng(0)
    age, insulin = random.uniform(20, 60, 40), random.uniform(50, 200, 40)
    age[[3, 7]], insulin[:6] = (999, -999), 0
    table = pd.DataFrame({"age": age, "insulin": insulin, "y": np.arange(40.0)}, index=np.arange(1, 41))
    table["counts"] = random.poisson(0.3, 40)
    table["rare"] = (np.arange(40) == 5).astype(float)
    table["heavy"] = random.lognormal(0, 1.5, 40)
    table["z"] = [-999, *random.uniform(1000, 9000, 36).round(1), -999, -999, 5]
    encoding, _ = learn_encoding(table, "y")
    far, zeros, coded = suspicious_inputs(encode(table, encoding).X, encoding)
    assert "column 'age': look at row 4 (999), row 8 (-999), while half of the column lies within" in far
    assert zeros.startswith("column 'insulin': 6 values are exactly 0, many more than of most others; if 0 stands for")
    assert zeros.endswith("row 1 (0), row 2 (0), row 3 (0), row 4 (0), row 5 (0) and 1 more")
    assert coded.startswith("column 'z': 3 values are exactly -999, many more than of most others; if -999 stands for")
