"""Any file gives a result, or one sentence and exit code 2. Never a traceback."""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rcgp.cli import run

MODEL: list[Path] = []

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


def run_on(content, command):
    """Exit code and output of a command on a table with this content."""
    out, err = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.csv"
        path.write_bytes(content)
        arguments = [command, str(path), "--target", "y"]
        if command == "clean":
            arguments += ["--log", "--output", str(Path(folder) / "clean.csv")]
        if command == "report":
            arguments += ["--output", str(Path(folder) / "report.html")]
        if command == "predict":
            arguments = [command, str(MODEL[-1]), str(path)]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run([*arguments, "--missing", "drop"])
        written = {"report": ["report.html"], "clean": ["clean.csv"]}.get(command, []) if code == 0 else []
        assert sorted(p.name for p in Path(folder).iterdir()) == sorted(["data.csv", *written])
    return code, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module", autouse=True)
def _model(tmp_path_factory):
    """A model to predict with, of columns a and b."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "train.csv").write_text("a,b,y\n1,x,1\n2,z,3\n3,x,2\n4,z,5\n")
    MODEL.append(folder / "model.rcgp")
    assert run(["fit", str(folder / "train.csv"), "--target", "y", "--model", str(MODEL[-1])]) == 0


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@example(content=b"a,y\n1,1\n2,3\n3,2\n4,1e308\n", command="fit")
@example(content=b"a,y\n1,1\n2,3\n3,2\n4,1e308\n", command="report")
@example(content=b"a,y\n1e308,1\n-1e308,3\n3,2\n4,5\n", command="outliers")
@example(content=b"a,y\n1,1\n2,3\n3,1e-300\n4,1e308\n", command="clean")
@example(content=b"a,b\n1e308,x\n2,z\n", command="predict")
@given(
    content=st.one_of(almost_tables(), st.binary(max_size=200)),
    command=st.sampled_from(["fit", "outliers", "predict", "report", "clean"]),
)
def test_malformed_tables_never_end_in_a_traceback(content, command):
    code, out, err = run_on(content, command)
    assert code in (0, 2)
    assert "Traceback" not in err
    if code == 2:
        assert out == ""
        assert err.startswith("rcgp: ")
        assert err.count("\n") == 1
