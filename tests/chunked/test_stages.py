from __future__ import annotations

import numpy as np
import pytest

from rcgp.chunked.fit import fit_chunks
from rcgp.chunked.resources import Stages
from rcgp.chunks import Serial, Threads, chunks_of

random = np.random.default_rng(0)
X = random.uniform(-2, 2, (120, 1))
Y = np.sin(2 * X[:, 0]) + 0.1 * random.standard_normal(120)
STEPS = ["sample", "hyperparameters", "inducing points", "all rows"]


class Recorder:
    """Records the reports of progress."""

    def __init__(self):
        self.steps, self.evaluations = [], []

    def __call__(self, evaluations, best):
        self.evaluations.append(evaluations)

    def stage(self, name, done, total):
        self.steps.append((name, done, total))


@pytest.mark.parametrize("engine", [Serial(), Threads(2)])
def test_steps_and_passes_are_reported(engine):
    recorder = Recorder()
    fit_chunks(chunks_of(X, Y, rows=50), engine, inducing=10, fit_rows=40, progress=recorder)
    assert [name for name, done, _ in recorder.steps if not done] == STEPS
    assert recorder.evaluations
    passes = [(done, total) for name, done, total in recorder.steps if name == "all rows" and done]
    assert len(passes) == 6  # two, of three chunks each
    assert [done for done, _ in passes].count(120) == 2
    assert {total for _, total in passes} == {120}
    assert [total for name, done, total in recorder.steps if name == "sample"][:4] == [0, 0, 0, 0]  # not known before


def test_a_plain_function_gets_evaluations_only():
    heard = []
    fit_chunks(
        chunks_of(X, Y), Serial(), inducing=10, fit_rows=40, progress=lambda evaluations, best: heard.append(best)
    )
    assert len(heard) > 5


def test_progress_is_shown_by_step(capsys):
    fit_chunks(chunks_of(X, Y, rows=50), Serial(), inducing=10, fit_rows=40, polish=2, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert [line.partition(":")[0] for line in lines] == [*STEPS[:3], "polish", "all rows"]
    assert "evaluations, best" in lines[1]
    assert "evaluations, best" in lines[3]
    assert lines[4] == "all rows: 120 of 120 rows"


def test_nothing_is_shown_by_default(capsys):
    stages = Stages(False)
    engine = Serial()
    assert stages.watched(engine) is engine
    with stages.step("one"):
        pass
    assert list(stages.seconds) == ["one"]
    assert capsys.readouterr() == ("", "")


def test_a_step_that_fails_is_not_timed():
    stages = Stages(False)
    with pytest.raises(KeyError), stages.step("one"):
        raise KeyError
    assert stages.seconds == {}
