"""The judge: what is recorded is never run again, and the page has the bars as numbers from the records."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from optional_parts import optional
from rcgp_paper.experiments import Record, RecordFile

METHODS = ("clean", "plain", "learned", "student-t")


@pytest.fixture(scope="module")
def robustness(script):
    return script("robustness")


@pytest.fixture
def few_rows(robustness, monkeypatch):
    """Every problem has 30 rows."""

    def small(name, kind, split):
        case = whole(name, kind, split)
        rows = {part: getattr(case, part)[:30] for part in ("train_X", "clean_y", "train_y", "wrong")}
        return dataclasses.replace(case, **rows)

    whole = robustness.problem
    monkeypatch.setattr(robustness, "problem", small)


def made_up(robustness, error, density=0.0, cpu=1.0):
    """Records of every cell of the judging half, whose clean GP has error 2, density 0 and 0.5 s."""
    records = []
    for name in robustness.JUDGE:
        for kind in robustness.KINDS:
            for method in METHODS:
                learned = method == "learned"
                values = {
                    "mae": 2.0 * error(name, kind) if learned else 2.0,
                    "nlpd": density if learned else 0.0,
                    "coverage": 0.95,
                    "cpu": cpu if learned else 0.5,
                    "rows": 500,
                    "recall": 1.0,
                    "precision": 0.9,
                    "good_flagged": 0.01 if learned else math.nan,
                    "law": {"normal": False, "local_noise": True} if learned else {},
                }
                config = {"data": name, "kind": kind, "split": 0, "method": method}
                if method != "clean" or kind == "none":
                    records.append(Record("robustness", config, values))
    return records


def figures(robustness, records):
    """Figures and verdicts of the bars, by their text."""
    results = robustness.Results(records, robustness.JUDGE)
    return {bar.text: (bar.figure, bar.verdict) for bar in robustness.bars(results, results)}


@pytest.mark.slow
def test_a_second_run_makes_nothing_and_the_page_names_the_bars(robustness, tmp_path):
    optional("matplotlib")
    path, reports = tmp_path / "judge.jsonl", []

    def run():
        reports.clear()
        kinds, methods = ("none", "two-sided 15 %"), ("clean", "learned")
        return robustness.run(path, ["growing_noise"], kinds, 1, methods, lambda *counts: reports.append(counts))

    assert run() == []
    assert reports[0] == (0, 3)  # the clean GP is the same for both kinds of errors
    content = path.read_bytes()
    assert len(list(RecordFile(path))) == 3
    assert run() == []
    assert reports == [(3, 3)]
    assert path.read_bytes() == content

    page = tmp_path / "docs" / "benchmark.md"
    robustness.main(["page", "--half", "tune", "--records", str(path), "--output", str(page)])
    text = page.read_text(encoding="utf-8")
    assert all(f"| {number} | " in text for number in (1, 3, 6))
    assert "no records" in text  # of the Student-t GP
    assert (page.parent / "images" / "judge.png").exists()


@pytest.mark.parametrize("method", ["plain", "rcgp", "learned", "student-t", "mixture", "winsorized", "boosting"])
def test_every_method_is_scored(robustness, few_rows, method):
    values = robustness.run_one({"data": "growing_noise", "kind": "two-sided 35 %", "split": 0, "method": method})
    assert np.isfinite([values["mae"], values["cpu"]]).all()
    assert values["rows"] == 30
    assert np.isfinite([values["nlpd"], values["coverage"]]).all() == (method != "boosting")
    flags = np.isfinite([values["recall"], values["good_flagged"]]).all()
    assert flags == (method in ("learned", "mixture", "winsorized"))


def test_the_clean_gp_is_fitted_without_outliers(robustness, few_rows):
    clean, without = (
        robustness.run_one({"data": "growing_noise", "kind": kind, "split": 0, "method": method})
        for kind, method in (("two-sided 35 %", "clean"), ("none", "plain"))
    )
    assert clean["mae"] == without["mae"]


def test_the_told_gp_is_fitted_to_the_right_rows(robustness, few_rows):
    case = robustness.problem("growing_noise", "two-sided 35 %", 0)
    told, plain = (
        robustness.run_one({"data": "growing_noise", "kind": "two-sided 35 %", "split": 0, "method": method})
        for method in ("told", "plain")
    )
    assert 0 < told["rows"] == (~case.wrong).sum() < plain["rows"]
    assert told["mae"] < plain["mae"]


def test_bars_are_figures_of_the_cells(robustness):
    hard = robustness.JUDGE[0]
    error = {"two-sided 15 %": 1.5, "t2 noise": 3.0}
    found = figures(robustness, made_up(robustness, lambda name, kind: error.get(kind, 1.0) if name == hard else 1.0))
    cells = len(robustness.JUDGE)
    assert found["error, all kinds but t₂ noise: geometric mean"] == (pytest.approx(1.5 ** (1 / (10 * cells))), "met")
    assert found["error, scattered: share of cells above 1.3"] == (pytest.approx(1 / (7 * cells)), "met")
    assert found["error, scattered: worst cell"] == (pytest.approx(1.5), "met")
    assert found["error, none: geometric mean"] == (pytest.approx(1.0), "met")
    assert found["share of cells at or below the Student-t GP's error"][0] == pytest.approx(1 - 2 / (11 * cells))
    heavy = found["error over the Student-t GP's, t₂ noise: geometric mean"]
    assert heavy == (pytest.approx(3.0 ** (1 / cells)), "**missed**")
    assert found["coverage: mean of cells"] == (pytest.approx(0.95), "met")
    assert found["CPU time over the plain GP's: median of cells"] == (pytest.approx(2.0), "met")


def test_a_prediction_that_is_not_finite_ranks_last(robustness):
    found = figures(robustness, made_up(robustness, lambda name, kind: math.nan if kind == "none" else 1.0, math.nan))
    assert found["error, none: worst cell"] == (math.inf, "**missed**")
    assert found["density minus the plain GP's, none: mean"] == (math.inf, "**missed**")


def test_splits_are_averaged_geometrically_and_only_common_ones(robustness):
    config = {"data": "neal", "kind": "none"}
    records = [
        Record("robustness", {**config, "method": method, "split": split}, {"mae": error})
        for method, errors in (("clean", (1.0, 1.0)), ("learned", (2.0, 8.0, 100.0)))
        for split, error in enumerate(errors)
    ]
    assert robustness.Results(records, ("neal",)).ratio("neal", "none", "learned") == pytest.approx(4.0)


def test_the_best_method_is_in_bold_and_missing_runs_are_noted(robustness):
    records = made_up(robustness, lambda name, kind: 0.5)
    text = robustness.page(records, "judge", None)
    assert "| all but t₂ noise | 1.00 | **0.50** | 1.00 |" in text
    assert "No run failed." in text
    lacking = [r for r in records if (r.config["method"], r.config["kind"]) != ("student-t", "gross 5 %")]
    assert f"Student-t GP {len(robustness.JUDGE)}." in robustness.page(lacking, "judge", None)


def test_unknown_names_raise(robustness, capsys):
    with pytest.raises(SystemExit):
        robustness.main(["run", "--methods", "plain,magic"])
    assert "unknown: magic" in capsys.readouterr().err
