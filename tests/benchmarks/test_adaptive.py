"""The benchmark of adaptive centring: that its ratios, flags and verdicts are what they are called."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from rcgp import RCGP
from rcgp.data import Dataset, prepare
from rcgp.training import FitError
from rcgp.weights import Plateau


@pytest.fixture(scope="module")
def benchmark(script):
    return script("adaptive")


@pytest.fixture(scope="module")
def bars(script):
    return script("adaptive_bars")


@pytest.fixture
def case(bars):
    """A problem of 100 rows with ten outliers, nine of them among ten flagged; all scores can be replaced."""

    def make(data="synthetic", contamination="uniform", index=0, outliers=10, flagged=10, found=9, **mae):
        errors = {"clean GP": 0.1, "GP": 0.4, "GP with priors": 0.1, "RCGP": 0.2, "adaptive": 0.11, **mae}
        results = {
            name.replace("_", " "): bars.Result(error, -1.0, 0.95, 1.0, flagged, found)
            for name, error in errors.items()
        }
        return bars.Case(data, contamination, index, 100, outliers, results)

    return make


def verdicts(bars, cases, number):
    return [bars.verdict(found) for bar, found in bars.demands(bars.cells_of(cases)) if bar.startswith(f"{number}:")]


def test_a_cell_is_mean_over_mean_and_the_worst_split_is_a_ratio_of_its_own(bars, case):
    (cell,) = bars.cells_of([case(adaptive=0.1), case(index=1, adaptive=0.6, clean_GP=0.3)])
    assert cell.mean("adaptive", "mae") == pytest.approx(0.35)
    assert cell.ratio("mae", "adaptive", "GP") == pytest.approx(0.35 / 0.4)
    assert cell.ratio("mae", "adaptive", "clean GP") == pytest.approx(0.35 / 0.2)
    assert cell.worst("adaptive", "clean GP") == pytest.approx(2.0)


def test_precision_and_recall_are_over_all_rows_of_all_splits(bars, case):
    (cell,) = bars.cells_of([case(flagged=10, found=9), case(index=1, flagged=2, found=1)])
    assert cell.share("found", "flagged") == pytest.approx(10 / 12)
    assert cell.share("found", "outliers") == pytest.approx(10 / 20)
    assert cell.share("flagged", "rows") == pytest.approx(12 / 200)
    (nothing,) = bars.cells_of([case(flagged=0, found=0)])
    assert math.isnan(nothing.share("found", "flagged"))
    assert verdicts(bars, [case(flagged=0, found=0)], 6)[:2] == ["missed in 1 of 1"] * 2


def test_cells_stand_by_data_set_and_keep_the_order_of_contaminations(bars, case):
    names = [("yacht", "clean"), ("synthetic", "uniform"), ("yacht", "focused"), ("synthetic", "uniform")]
    cells = bars.cells_of(case(data, contamination) for data, contamination in names)
    assert [(cell.name, len(cell.cases)) for cell in cells] == [
        ("yacht clean", 1),
        ("yacht focused", 1),
        ("synthetic uniform", 2),
    ]


@pytest.mark.parametrize(
    ("number", "change", "expected"),
    [
        (1, {"contamination": "clean", "GP": 0.1, "adaptive": 0.1049}, ["met", "met"]),
        (1, {"contamination": "clean", "GP": 0.1, "adaptive": 0.1051}, ["missed in 1 of 1", "met"]),
        (2, {"adaptive": 0.1249}, ["met", "met"]),
        (2, {"adaptive": 0.1251}, ["missed in 1 of 1", "met"]),
        (2, {"adaptive": 0.2501}, ["missed in 1 of 1", "missed in 1 of 1"]),
        (2, {"data": "yacht", "adaptive": 0.159}, ["met", "met"]),
        (2, {"data": "yacht", "adaptive": 0.161}, ["missed in 1 of 1", "met"]),
        (2, {"contamination": "clean"}, ["not measured", "not measured"]),
        (3, {"contamination": "focused", "GP": 0.1, "adaptive": 0.104}, ["met", "met"]),
        (3, {"contamination": "focused", "GP": 0.1, "adaptive": 0.106}, ["missed in 1 of 1", "met"]),
        (3, {"contamination": "focused", "GP": math.nan, "adaptive": 0.121}, ["met", "missed in 1 of 1"]),
        (3, {"contamination": "focused", "data": "boston"}, ["met", "not measured"]),
        (4, {"contamination": "uniform 30 %", "adaptive": 0.109}, ["met"]),
        (4, {"contamination": "uniform 30 %", "adaptive": 0.111}, ["missed in 1 of 1"]),
        (4, {"contamination": "uniform 20 %", "adaptive": 0.101}, ["missed in 1 of 1"]),
        (6, {"flagged": 10, "found": 10}, ["met", "met", "not measured"]),
        (6, {"flagged": 11, "found": 10}, ["missed in 1 of 1", "met", "not measured"]),
        (6, {"flagged": 9, "found": 9}, ["met", "missed in 1 of 1", "not measured"]),
        (6, {"contamination": "clean", "flagged": 3}, ["not measured", "not measured", "met"]),
        (6, {"contamination": "clean", "flagged": 4}, ["not measured", "not measured", "missed in 1 of 1"]),
    ],
    ids=str,
)
def test_bars_are_missed_just_beyond_their_limits(bars, case, number, change, expected):
    assert verdicts(bars, [case(**change)], number) == expected


def test_a_failed_fit_of_ours_misses_and_is_marked(bars, case):
    assert verdicts(bars, [case(adaptive=math.nan), case(index=1)], 2) == ["missed in 1 of 1"] * 2
    assert "**synthetic uniform nan**" in bars.bar_list(bars.cells_of([case(adaptive=math.nan)]))


@pytest.mark.parametrize(
    ("metric", "value", "number", "expected"),
    [
        ("coverage", 0.9, 5, ["met"]),
        ("coverage", 0.986, 5, ["missed in 1 of 1"]),
        ("coverage", 0.899, 5, ["missed in 1 of 1"]),
        ("nlpd", -0.96, 1, ["met", "met"]),
        ("nlpd", -0.94, 1, ["met", "missed in 1 of 1"]),
        ("seconds", 5.0, 7, ["met"]),
        ("seconds", 5.1, 7, ["missed in 1 of 1"]),
    ],
)
def test_intervals_densities_and_seconds_have_limits(bars, case, metric, value, number, expected):
    one = case(contamination="clean", GP=0.11)
    changed = dataclasses.replace(one.results["adaptive"], **{metric: value})
    one.results["adaptive"] = changed
    assert verdicts(bars, [one], number) == expected


def test_the_cost_of_a_data_set_is_that_of_all_its_cells_but_not_of_larger_shares(bars, case):
    cases = [case(contamination=name) for name in ("clean", "uniform", "uniform 20 %")]
    for one, seconds in zip(cases, (2.0, 8.0, 100.0), strict=True):
        one.results["adaptive"] = dataclasses.replace(one.results["adaptive"], seconds=seconds)
    (figure,) = bars.costs(bars.named(bars.cells_of(cases), "clean", "uniform"))
    assert (figure.where, figure.value) == ("synthetic", 5.0)
    assert verdicts(bars, cases, 7) == ["met"]


def test_tables_say_the_means(bars, case):
    cells = bars.cells_of([case(adaptive=0.1), case(index=1, adaptive=0.3)])
    line = bars.accuracy_table(cells).splitlines()[-1].replace(" ", "")
    assert line == "|syntheticuniform|2|0.100|0.400|0.200|0.200|2.00|3.00|"
    line = bars.detail_table(cells).splitlines()[-1].replace(" ", "")
    assert line.endswith("|0.950|0.950|0.950|10.0%|0.900|0.900|1.00|1.0|1.0|")
    line = bars.ablation_table(cells).splitlines()[-1].replace(" ", "")
    assert line.startswith("|syntheticuniform|2|0.100(0.950;1.00)|")


def test_results_as_json_have_null_for_a_failed_fit(benchmark, case):
    (read,) = json.loads(benchmark.written([case(adaptive=math.nan)]))
    assert read["results"]["adaptive"]["mae"] is None
    assert read["results"]["GP"] == {
        "mae": 0.4,
        "nlpd": -1.0,
        "coverage": 0.95,
        "seconds": 1.0,
        "flagged": 10,
        "found": 9,
    }


def test_a_flagged_row_is_beyond_its_threshold_and_far_out(benchmark):
    X = torch.linspace(0, 6, 30, dtype=torch.float64).unsqueeze(-1)
    y = torch.sin(X.squeeze(-1))
    y[3], y[20] = 4.0, -4.0
    centre, threshold = torch.sin(X.squeeze(-1)), torch.full((30,), 0.5, dtype=torch.float64)
    threshold[20] = 100.0  # far out, but trusted
    centre[10] += 0.6  # not trusted, but where the others expect it
    model = RCGP(X, y, mean="zero", weight=Plateau(centre, threshold), noise=0.01)
    assert model.weights()[10] < 0.71
    assert benchmark.flagged_rows(model).nonzero().flatten().tolist() == [3]


def test_adaptive_finds_the_outliers_and_the_scores_are_those_of_the_test_part(benchmark):
    problem = prepare("synthetic", "uniform", "paper", 100)
    result = benchmark.measure(benchmark.by_name("adaptive"), problem)
    assert result.flagged == result.found == problem.mask.sum() == 27
    assert result.mae < 0.12
    assert result.seconds > 0
    again = benchmark.measure(benchmark.adaptive_of(benchmark.PARTS["all parts"]), problem)
    assert again.mae == pytest.approx(result.mae, rel=1e-9)


def test_a_fit_that_fails_is_told_and_does_not_end_the_run(benchmark, capsys):
    def fail(problem):
        raise FitError("no start led anywhere", row=0)

    result = benchmark.measure(fail, prepare("synthetic", "clean"))
    assert math.isnan(result.mae)
    assert math.isnan(result.coverage)
    assert "a fit failed: no start led anywhere" in capsys.readouterr().out


def test_each_part_is_left_out_once_and_all_together(benchmark):
    off = [[name for name, on in vars(parts).items() if not on] for parts in benchmark.PARTS.values()]
    names = list(vars(benchmark.PARTS["all parts"]))
    assert off == [[], *([name] for name in names), names]


def test_subsets_are_drawn_anew_for_each_index_and_the_same_again(benchmark):
    X = np.arange(2000.0)[:, None]
    data = Dataset("numbers", X, X[:, 0], ("x",), "made here")
    first, again, second = (benchmark.subset(data, index) for index in (0, 0, 1))
    assert len(set(first.y)) == 600
    np.testing.assert_array_equal(first.X[:, 0], first.y)
    np.testing.assert_array_equal(first.y, again.y)
    assert (first.y != second.y).any()


def test_larger_shares_are_measured_on_synthetic_only(benchmark):
    found = benchmark.contaminations_of("synthetic", ["clean", "uniform"], [0.2, 0.4])
    assert list(found) == ["clean", "uniform", "uniform 20 %", "uniform 40 %"]
    assert found["uniform 40 %"].share == 0.4
    assert list(benchmark.contaminations_of("yacht", ["uniform"], [0.2])) == ["uniform"]
    assert list(benchmark.contaminations_of("synthetic", ["clean"], [0.2])) == ["clean"]


@pytest.fixture
def run(benchmark, bars, monkeypatch, capsys):
    """Run the command with results made up in place of fits: what it printed, and its exit code."""

    def run_with(*options, measure=lambda fit, problem: bars.Result(0.1, -1.0, 0.95, 1.0, 0, 0)):
        monkeypatch.setattr("sys.argv", ["adaptive.py", "--data", "synthetic", *options])
        monkeypatch.setattr(benchmark, "measure", measure)
        try:
            benchmark.main()
        except SystemExit as end:
            return capsys.readouterr(), end.code
        return capsys.readouterr(), 0

    return run_with


def test_the_command_says_which_splits_were_used_for_tuning(run):
    printed, code = run("--splits", "2")
    assert code == 0
    tuned = "tuned on splits 100 to 115, 200 to 209, 300 to 309 of synthetic, boston, energy, yacht, not on these, but"
    assert tuned in printed.out
    assert "| synthetic uniform 40 % | 2 " in printed.out
    printed, _ = run("--splits", "2", "--first", "99", "--contamination", "clean")
    assert "this is no judgement" in printed.out


def test_an_interrupted_run_prints_and_writes_what_was_measured(bars, run, tmp_path):
    calls = []

    def interrupted(fit, problem):
        calls.append(problem)
        if len(calls) > 3 + 4 + 1:  # to be warm; the first problem; half of the second
            raise KeyboardInterrupt
        return bars.Result(0.1, -1.0, 0.95, 1.0, 0, 0)

    printed, code = run("--json", str(tmp_path / "cases.json"), measure=interrupted)
    assert code == 130
    assert "interrupted" in printed.out
    assert "| synthetic clean | 1 " in printed.out
    assert "focused" not in printed.out.split("interrupted")[1].split("- 1:")[0]
    assert [one["contamination"] for one in json.loads((tmp_path / "cases.json").read_text())] == ["clean"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--held-out"], "--held-out, name some of kin8nm"),
        (["--splits", "0"], "at least 1"),
        (["--shares", "2"], "shares"),
    ],
)
def test_options_that_make_no_sense_are_refused(run, options, message):
    printed, code = run(*options)
    assert code == 2
    assert message in printed.err
