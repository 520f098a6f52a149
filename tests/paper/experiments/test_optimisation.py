"""Bayesian optimisation as experiments: what is run, what is shared, and what tables and figures make of it."""

from __future__ import annotations

import importlib
import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from optional_parts import optional
from rcgp_paper.experiments import EXPERIMENTS, Options, Record, RecordFile, run_experiment, runs_to_make
from rcgp_paper.experiments.optimisation import FUNCTION_TITLES, METHOD_TITLES
from rcgp_paper.report.figures import DRAWINGS, draw_optimisation
from rcgp_paper.report.reproduction import render, write_page
from rcgp_paper.report.tables import optimisation_tables

FIGURES = ("figure_bo_ucb", "figure_bo_pi", "figure_bo_clean")
SETTINGS = {
    "figure_bo_ucb": ("ucb", True),
    "figure_bo_pi": ("pi", True),
    "figure_bo_clean": ("ucb", False),
    "table_bo": ("pi", False),
}
METHODS = ("gp", "rcgp", "rcgp_paper", "t-gp")


@pytest.mark.parametrize("name", SETTINGS)
def test_an_experiment_has_all_functions_and_methods_before_it_repeats_any(name):
    configs = EXPERIMENTS[name].configs(Options())
    assert {(c["acquisition"], c["outliers"]) for c in configs} == {SETTINGS[name]}
    assert [(c["function"], c["method"]) for c in configs[:16]] == [
        (function, method) for function in ("camel", "branin", "mccormick", "rosenbrock") for method in METHODS
    ]
    assert [c["index"] for c in configs] == [index for index in range(10) for _ in range(16)]
    assert {c["steps"] for c in configs} == {50}
    assert len(EXPERIMENTS[name].configs(Options(splits=3))) == 48
    quick = EXPERIMENTS[name].configs(Options(quick=True))
    assert len(quick) == (4 if name == "figure_bo_ucb" else 2)
    assert {c["steps"] for c in quick} == {2}
    assert EXPERIMENTS[name].most_jobs is None  # in parallel


@pytest.mark.parametrize("name", SETTINGS)
def test_an_experiment_can_be_sent_to_another_process(name):
    sent = pickle.loads(pickle.dumps(EXPERIMENTS[name]))
    assert sent.configs(Options()) == EXPERIMENTS[name].configs(Options())


def run(**change):
    config = {"function": "branin", "acquisition": "ucb", "outliers": True, "method": "gp", "steps": 2, "index": 3}
    return EXPERIMENTS["figure_bo_ucb"].run({**config, **change})


@pytest.fixture(scope="module")
def runs():
    """All methods on one problem."""
    optional("botorch")
    return {method: run(method=method) for method in METHODS}


def test_methods_share_first_points_and_outliers(runs):
    first = [values["point"][:5] for values in runs.values()]
    assert first[0] == first[1] == first[2] == first[3]
    fates = [values["outlier"] for values in runs.values()]
    assert fates[0] == fates[1] == fates[2] == fates[3]
    assert 0 < sum(fates[0]) < 7
    assert run(index=4)["point"][:5] != first[0]
    assert run(function="camel")["point"][:5] != first[0]


def test_regret_is_that_of_clean_values_and_counts_no_first_points(runs):
    from rcgp_paper.experiments.trials import FUNCTIONS

    function = FUNCTIONS["branin"]
    for values in runs.values():
        clean = function(torch.tensor(values["point"], dtype=torch.float64)).numpy()
        np.testing.assert_allclose(values["first_regret"] + values["regret"], clean - function.minimum)
        assert len(values["regret"]) == 2
        seen = np.array(values["observed"]) - clean
        assert ((seen > 0.99) == np.array(values["outlier"])).all()


def test_a_run_is_reproducible_except_for_its_seconds(runs):
    again = run(method="gp")
    for key in set(again) - {"fit_seconds", "acquisition_seconds"}:
        assert again[key] == runs["gp"][key]
    assert json.loads(json.dumps(runs)) == runs


def test_outliers_are_flagged_by_the_robust_models(runs):
    assert runs["gp"]["suspected"] == runs["t-gp"]["suspected"] == []
    assert all(len(runs[method]["suspected"]) == 6 for method in ("rcgp", "rcgp_paper"))
    assert all(values["converged"] == (values["failed"] == []) for values in runs.values())


def test_without_outliers_values_are_unchanged(runs):
    values = run(outliers=False)
    assert not any(values["outlier"])
    assert values["point"][:5] == runs["gp"]["point"][:5]


def test_the_papers_threshold_is_that_of_the_function(monkeypatch):
    optional("botorch")
    from rcgp_paper.experiments import trials

    thresholds = []
    monkeypatch.setattr(trials, "fit_rcgp_as_in_paper", lambda c: thresholds.append(c) or trials.fit_gp)
    run(method="rcgp_paper", steps=1)
    run(method="rcgp_paper", steps=1, function="camel")
    assert thresholds == [2.0, 1.0]


def test_a_t_gp_continues_after_a_failed_fit_and_reports_it(monkeypatch):
    optional("botorch")
    from rcgp.training import FitError
    from rcgp_paper.baselines import StudentTGP

    def fail(self):
        raise FitError("nowhere", 0)

    monkeypatch.setattr(StudentTGP, "fit", fail)
    values = run(method="t-gp", steps=1)
    assert (values["failed"], values["converged"]) == ([0], False)


@pytest.mark.slow
def test_recorded_runs_are_not_repeated(tmp_path):
    optional("botorch")
    experiment, quick = EXPERIMENTS["table_bo"], Options(quick=True)
    part = Options(quick=True, methods=("gp",))
    records, failures, _ = run_experiment(experiment, part, tmp_path)
    assert (len(records), failures) == (1, [])
    assert [config["method"] for config in runs_to_make(experiment, quick, tmp_path)] == ["rcgp"]
    run_experiment(experiment, part, tmp_path)
    assert len(list(RecordFile(tmp_path / "table_bo.jsonl"))) == 1


def record_of(experiment, function, method, index, steps=4, factor=1.0, **values):
    acquisition, outliers = SETTINGS[experiment]
    config = {
        "function": function,
        "acquisition": acquisition,
        "outliers": outliers,
        "method": method,
        "steps": steps,
        "index": index,
    }
    found = {
        "regret": [factor * (1 + METHODS.index(method)) + index] * steps,
        "fit_seconds": [0.3 * 10 ** METHODS.index(method)] * steps,
        "acquisition_seconds": [0.2] * steps,
        "failed": [],
        **values,
    }
    return Record(experiment, config, found, 1.0, {"rcgp": "0"}, "2026-01-01T00:00:00+00:00")


def records_of(experiment, repetitions=3, **change):
    return [
        record_of(experiment, function, method, index, **change)
        for index in range(repetitions)
        for function in FUNCTION_TITLES
        for method in METHODS
    ]


def test_every_figure_of_optimisation_has_this_drawing():
    assert all(DRAWINGS[name] is draw_optimisation for name in FIGURES)


def test_the_figure_shows_mean_cumulative_regret_above_and_clock_time_below():
    figure = draw_optimisation(records_of("figure_bo_ucb") + records_of("figure_bo_ucb", 1, steps=2, factor=50.0))
    assert len(figure.axes) == 8
    above, below = figure.axes[:4], figure.axes[4:]
    assert [axis.get_title() for axis in above] == list(FUNCTION_TITLES.values())
    assert [axis.get_xlabel() for axis in below] == ["step"] * 4
    assert (above[0].get_ylabel(), below[0].get_ylabel()) == ("cumulative regret", "clock time (s)")
    steps = np.arange(1, 5)
    for upper, lower in zip(above, below, strict=True):
        for i, line in enumerate(upper.lines):
            np.testing.assert_allclose(line.get_xydata(), np.column_stack([steps, (1 + i + 1.0) * steps]))
            band = upper.collections[i].get_paths()[0].vertices
            ends = band[band[:, 0] == 4, 1]  # standard error of 0, 1 and 2, times four steps
            assert (ends.max() - ends.min()) / 2 == pytest.approx(4 / math.sqrt(3))
        for i, line in enumerate(lower.lines):
            np.testing.assert_allclose(line.get_ydata(), (0.3 * 10**i + 0.2) * steps)
        assert lower.get_yscale() == "log"
    assert [line.get_color() for line in above[0].lines] == ["#4daf4a", "#377eb8", "#377eb8", "#ff7f00"]
    assert [line.get_linestyle() for line in above[0].lines] == ["-", "-", "--", "-"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [*METHOD_TITLES.values(), "± standard error"]


@pytest.mark.parametrize("records", [records_of("figure_bo_pi"), records_of("figure_bo_pi", 1, steps=2)[:4]], ids=len)
def test_no_text_of_the_figure_is_cut_off_or_small(records):
    figure = draw_optimisation(records)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    own, area = legend.get_texts(), legend.get_window_extent()
    texts = [text for axis in figure.axes for text in (axis.title, axis.xaxis.label, axis.yaxis.label)]
    for axis in figure.axes:
        low, high = axis.get_ylim()
        ticks = [tick for tick in axis.yaxis.get_major_ticks() if low <= tick.get_loc() <= high]
        assert len(ticks) >= 2
        texts += [tick.label1 for tick in ticks]
    for text in [*texts, *own]:
        if text.get_text():
            box = text.get_window_extent()
            assert min(box.x0, box.y0, figure.bbox.x1 - box.x1, figure.bbox.y1 - box.y1) >= 0
            assert text.get_fontsize() >= 8.0
            assert text in own or not area.overlaps(box)
    bands = [text.get_text() for text in own if "error" in text.get_text()]
    assert bands == (["± standard error"] if len(records) > 16 else [])


def test_tables_have_every_setting_and_the_best_in_bold():
    records = [record for name in SETTINGS for record in records_of(name)]
    (regret, seconds), notices = optimisation_tables(records)
    assert notices == []
    assert regret.title == "Cumulative regret after 4 steps"
    assert regret.head == ["", "GP", "RCGP", "RCGP as in the paper", "t-GP"]
    headings = ["UCB, 20 % outliers", "PI, 20 % outliers", "UCB, no outliers", "PI, no outliers"]
    assert [row[0] for row in regret.rows if len(row) == 1] == headings
    assert regret.rows[1] == ["six-hump camel", *(f"{4 * (2 + i):.3f} (4.000)" for i in range(4))]
    assert set(regret.best) == {(row, 1) for row in range(20) if row % 5}
    assert seconds.rows[2] == ["Branin", *(f"{0.3 * 10**i + 0.2:.3f} (0.000)" for i in range(4))]
    assert not seconds.best
    assert (
        "over 3 repetitions; the best of each row in bold. Values without outliers count. All fits converged."
        in regret.note
    )


def test_tables_note_failed_fits_other_code_and_foreign_records():
    records = records_of("table_bo", 1)
    records[0].values["failed"] += [1, 2]
    foreign = Record("table_bo", {"function": "sphere"}, {})
    (regret, _), notices = optimisation_tables([*records, foreign])
    assert "Fits that did not converge: GP 2 of 16." in regret.note
    assert "One run in each cell;" in regret.note
    assert notices == [f"table_bo: 1 record has no place in the tables, such as {foreign.key}"]
    assert optimisation_tables([foreign])[0] == []
    assert "code" not in regret.note


def test_the_table_shows_the_records_of_the_figures_too(tmp_path):
    for name in FIGURES:
        file = RecordFile(tmp_path / f"{name}.jsonl")
        for record in records_of(name, 1):
            file.append(record)
    own = records_of("table_bo", 2)
    (markdown, _), notices = render("table_bo", own, tmp_path)
    assert notices == []
    text = markdown.read_text()
    assert text.count("| **UCB, 20 % outliers** |") == 2
    assert "32 runs, made on 2026-01-01 by `rcgp reproduce table_bo --splits 2`" in text
    assert "16 runs, made on 2026-01-01 by `rcgp reproduce figure_bo_pi --splits 1`" in text
    page, notices = write_page({name: records_of(name, 1) for name in ("figure_bo_ucb", "table_bo")}, tmp_path)
    assert notices == []
    content = page.read_text()
    assert "UCB, 20 % outliers" in content
    assert "PI, no outliers" in content
    assert "PI, 20 % outliers" not in content  # which the page was not given


@pytest.fixture(scope="module")
def benchmark():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[3] / "benchmarks")
        yield importlib.import_module("optimisation")


def test_the_benchmark_compares_repetitions_that_both_have(benchmark, tmp_path):
    records = [record for name in SETTINGS for record in records_of(name, 3)]
    records = [r for r in records if (r.config["method"], r.config["index"]) != ("gp", 2)]
    for record in records:
        RecordFile(tmp_path / f"{record.experiment}.jsonl").append(record)
    found = benchmark.regret_figures(benchmark.read(tmp_path))
    assert len(found) == 4 * 2 * 2 + 4 * 2
    ratios = {(figure.bar, figure.runs): figure.value for figure in found}
    # Regrets of the first repetitions: 1 and 2 of the GP, 2 and 3 of RCGP; of three, 2, 3, 4 and 4, 5, 6 of t-GP.
    assert ratios == {("regret rcgp/gp", 2): pytest.approx(5 / 3), ("regret rcgp/t-gp", 3): pytest.approx(9 / 15)}
    assert {(figure.bar, figure.high) for figure in found if "outliers" in figure.where} == {
        ("regret rcgp/gp", 1.0),
        ("regret rcgp/t-gp", 1.05),
    }
    assert {(figure.bar, figure.high) for figure in found if "clean" in figure.where} == {("regret rcgp/gp", 1.05)}
    (times,) = benchmark.recorded_step_figure(records)
    assert (times.value, times.runs) == (pytest.approx(3.2 / 0.5), 4 * 4 * 2)


@pytest.mark.parametrize(
    ("value", "limits", "met"),
    [(1.2, {"high": 1.2}, True), (1.21, {"high": 1.2}, False), (19.0, {"low": 20.0}, False), (math.nan, {}, False)],
)
def test_the_benchmark_judges_at_its_limits(benchmark, value, limits, met):
    assert benchmark.Figure("bar", "here", value, **limits).met is met


def test_the_benchmark_misses_bars_by_its_exit_code(benchmark, tmp_path, monkeypatch, capsys):
    def code():
        monkeypatch.setattr("sys.argv", ["optimisation.py", "--records", str(tmp_path), "--no-times"])
        with pytest.raises(SystemExit) as end:
            benchmark.main()
        return end.value.code

    assert code() == 2
    assert "no records" in capsys.readouterr().out
    file = RecordFile(tmp_path / "figure_bo_ucb.jsonl")
    for record in records_of("figure_bo_ucb", 1):
        file.append(record)
    assert code() == 1
    assert "| regret rcgp/gp | branin ucb outliers | 2.000 | ≤ 1 | MISSED | 1 runs |" in capsys.readouterr().out
    for function in FUNCTION_TITLES:  # newer records of the same runs count
        file.append(record_of("figure_bo_ucb", function, "rcgp", 0, factor=0.4))
    assert code() == 0
