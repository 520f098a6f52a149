"""Whatever is in the file: an answer, or one sentence and exit code 2. Never a traceback."""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rcgp.cli import run

CELLS = st.one_of(
    st.sampled_from(
        ["", "1", "2.5", "-3e4", "1e308", "1e-320", "nan", "inf", "x", "<script>", "2024-01-31", "true", '"']
    ),
    st.integers(-(10**20), 10**20).map(str),
    st.floats().map(str),
    st.text(max_size=6),
)


@st.composite
def almost_tables(draw):
    width, height = draw(st.integers(1, 4)), draw(st.integers(0, 8))
    names = draw(
        st.lists(st.sampled_from(["a", "b", "y", "y ", "ü", "", "<b>", "a,b"]), min_size=width, max_size=width)
    )
    delimiter = draw(st.sampled_from([",", ";", "\t"]))
    column = st.one_of(st.just(CELLS), st.just(st.floats(-1e6, 1e6).map(str)), st.just(st.integers(0, 3).map(str)))
    columns = [draw(st.lists(draw(column), min_size=height, max_size=height)) for _ in names]
    rows = [names, *map(list, zip(*columns, strict=True))]
    text = "\n".join(delimiter.join(row) for row in rows)
    return text.encode("utf-8", "surrogatepass")


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(content=st.one_of(almost_tables(), st.binary(max_size=200)), command=st.sampled_from(["fit", "outliers"]))
def test_malformed_tables_never_end_in_a_traceback(content, command):
    out, err = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.csv"
        path.write_bytes(content)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run([command, str(path), "--target", "y", "--missing", "drop"])
    assert code in (0, 2)
    assert "Traceback" not in err.getvalue()
    if code == 2:
        assert out.getvalue() == ""
        assert err.getvalue().startswith("rcgp: ")
        assert err.getvalue().count("\n") == 1
