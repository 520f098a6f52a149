"""Any bytes give a table or a TableError."""

from __future__ import annotations

import gzip
import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rcgp.table import Encoding, TableError, encode, learn_encoding, read_table

ANY_FILE = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


def attempted(function, *arguments, **options):
    """What the function gives; None if it says in one printable sentence that it cannot."""
    try:
        return function(*arguments, **options)
    except TableError as error:
        sentence = str(error)
    assert sentence.isprintable()
    return None


def use(path):
    """Read, learn and encode with some columns as the target; gives how often that succeeds."""
    table = attempted(read_table, path)
    successes = 0
    for target, missing in itertools.product([] if table is None else table.columns[:4], ("error", "drop")):
        learnt = attempted(learn_encoding, table, target, missing=missing)
        if learnt is None:
            continue
        encoding, notices = learnt
        result = encode(table, encoding, missing)  # never refused: what could be learnt from can be encoded
        assert list(result.X.columns) == encoding.feature_names
        assert np.isfinite(result.X.to_numpy()).all()
        assert np.isfinite(result.y.to_numpy()).all()
        assert len(result.X) == len(table) - result.dropped >= 2
        assert all(notice.isprintable() for notice in notices)
        assert Encoding.from_json(encoding.to_json()) == encoding
        successes += 1
    return successes


@ANY_FILE
@given(
    beginning=st.sampled_from(
        [b"", b"x,y\n", b"\xff\xfe", b"\xef\xbb\xbf", b"\x1f\x8b\x08\x00", b"PAR1", b"PK\x03\x04"]
    ),
    content=st.binary(max_size=300),
    end=st.sampled_from([b"", b"\n", b"PAR1", b"\x10\0\0\0PAR1"]),
    name=st.sampled_from(["a.csv", "a.csv.gz", "a.parquet", "a"]),
)
def test_arbitrary_bytes(tmp_path, beginning, content, end, name):
    path = tmp_path / name
    path.write_bytes(beginning + content + end)
    use(path)


CELLS = st.one_of(
    st.integers(-5, 5).map(str),
    st.floats().map(str),
    st.dates().map(str),
    st.datetimes(timezones=st.timezones()).map(lambda when: when.isoformat()),
    st.sampled_from(
        ["", "NA", "?", "-", "1,5", "1e999", "1_0", "true", "FALSE", "red", "blue", "03/04/2024", '"', '""']
    ),
    st.text(max_size=6),
)
REGULAR = [st.integers(-5, 5).map(str), st.sampled_from(["a", "b", ""])]


@ANY_FILE
@given(data=st.data())
def test_almost_valid_csv(tmp_path, data):
    width = data.draw(st.integers(1, 4))
    delimiter = data.draw(st.sampled_from(",;\t|"))
    quote = data.draw(st.booleans())
    columns = data.draw(st.lists(st.sampled_from([CELLS, *REGULAR]), min_size=width, max_size=width))
    header = [data.draw(st.text(max_size=4)) for _ in range(width)]
    rows = data.draw(st.lists(st.tuples(*columns), max_size=8))
    lines = [header, *rows]
    if quote:
        lines = [['"{}"'.format(cell.replace('"', '""')) for cell in line] for line in lines]
    text = data.draw(st.sampled_from(["\n", "\r\n", "\r"])).join(delimiter.join(line) for line in lines)
    content = text.encode("utf-8", "surrogatepass")
    path = tmp_path / "a.csv"
    path.write_bytes(gzip.compress(content) if data.draw(st.booleans()) else content)
    use(path)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_a_good_file_passes_the_same_steps(tmp_path, delimiter):
    path = tmp_path / "a.csv"
    path.write_text("a,b,c\n1,2,red\n3,5,blue\n4,1,red\n".replace(",", delimiter))
    assert use(path) == 4  # two columns of numbers, refusing and dropping missing values
