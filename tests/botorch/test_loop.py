"""The loop for people without a script: what it finds, what it does with evaluations that go wrong, how it goes on."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from linear_operator.utils.errors import NanError, NotPSDError

from rcgp.botorch import EvaluationError, optimise, suggesting
from rcgp.botorch.evaluations import Box
from rcgp.botorch.suggesting import fit_surrogate, next_point, sobol_point
from rcgp.training import FitError

BOUNDS = {"a": (-2.0, 3.0), "b": (10.0, 20.0)}


def bowl(x):
    """Smallest, 1, at a = 1 and b = 16."""
    return 1.0 + (x["a"] - 1.0) ** 2 + 0.1 * (x["b"] - 16.0) ** 2


class Recorded:
    """An objective that keeps where it was evaluated, and does something else in some of its calls."""

    def __init__(self, others=None, function=bowl):
        self.points, self._others, self._function = [], others or {}, function

    def __call__(self, x):
        self.points.append(tuple(x.values()) if isinstance(x, dict) else tuple(x))
        other = self._others.get(len(self.points), 0.0)
        return other() if callable(other) else self._function(x) + other


def run(objective, budget, **options):
    return optimise(objective, BOUNDS, budget, **{"seed": 0, "progress": False, **options})


def interrupt():
    raise KeyboardInterrupt


def fail():
    raise RuntimeError("the oven is cold")


@pytest.fixture(scope="module")
def with_outliers():
    """A run in which three values are far too high and one is far too low: the luckiest of all."""
    torch.set_num_threads(1)
    objective = Recorded({3: 30.0, 8: 20.0, 11: -25.0, 14: 20.0})
    return run(objective, 17), objective


def test_the_minimum_is_found_among_outliers(with_outliers):
    result, objective = with_outliers
    assert bowl(result.x) < 1.05
    assert result.value == pytest.approx(bowl(result.x), abs=0.05)
    assert len(result.evaluations) == len(objective.points) == 17
    assert [tuple(e.x.values()) for e in result.evaluations] == objective.points


def test_the_best_is_neither_an_outlier_nor_the_luckiest(with_outliers):
    result, _ = with_outliers
    lucky = min(result.evaluations, key=lambda e: e.value)
    assert lucky.number == 11
    assert result.number != 11
    best = result.evaluations[result.number - 1]
    assert best.x == result.x
    assert best.outlier_probability < 0.5
    assert result.deviation > 0


def test_gross_outliers_are_flagged(with_outliers):
    assert {3, 8, 11, 14} <= {e.number for e in with_outliers[0].outliers}


def test_outliers_are_listed_with_what_was_expected(with_outliers):
    result, _ = with_outliers
    assert all(e.outlier_probability > 0.5 for e in result.outliers)
    for e in (result.evaluations[number - 1] for number in (3, 8, 11, 14)):
        assert e.outlier_probability > 0.5
        assert e.weight < 0.5
        assert abs(e.value - e.expected) > 10
    text = str(result)
    assert f"minimum {result.value:.6g} ± {result.deviation:.2g} after 17 evaluations" in text
    assert f"{len(result.outliers)} outlying evaluations" in text
    assert re.search(
        rf"^  11 +{result.evaluations[10].value:.4g} +{result.evaluations[10].expected:.4g} ± ", text, re.M
    )
    assert "failed" not in text


def test_expected_is_the_prediction_from_all_other_evaluations():
    X = torch.rand(12, 2, dtype=torch.double)
    y = (3 * X).sin().sum(-1)
    y[3] += 50.0
    surrogate = fit_surrogate(X, y)
    assert (surrogate.outlier_probability > 0.5).nonzero().flatten().tolist() == [3]
    # Brute force: the pseudo-data of the others, in the units of the model.
    weighed, unit = (
        surrogate.model._weighed(),
        (y[5] - y[0]) / (surrogate.model.train_targets[5] - surrogate.model.train_targets[0]),
    )
    K, z, r = weighed.K, weighed.pseudo.target, weighed.pseudo.noise
    gain = torch.linalg.solve(K[1:, 1:] + r[1:].diag(), K[1:, 0])
    prior = surrogate.model.train_targets[0] - weighed.residual[0]
    expected = y[0] + unit * (gain @ z[1:] + prior - surrogate.model.train_targets[0])
    assert float(surrogate.expected[0]) == pytest.approx(float(expected), rel=1e-6)
    variance = K[0, 0] - gain @ K[1:, 0]
    assert float(surrogate.expected_deviation[0]) == pytest.approx(float(unit * variance.sqrt()), rel=1e-4)


def test_points_do_not_depend_on_the_units_of_the_value():
    one, other = Recorded(), Recorded(function=lambda x: 2.0**-40 * bowl(x))
    first, second = run(one, 6), run(other, 6)
    assert one.points == other.points
    assert second.value == 2.0**-40 * first.value
    assert second.deviation == 2.0**-40 * first.deviation


def test_maximising_is_minimising_the_negative():
    low, high = Recorded(), Recorded(function=lambda x: -bowl(x))
    smallest, largest = run(low, 6), run(high, 6, maximise=True)
    assert low.points == high.points
    assert smallest.x == largest.x
    assert smallest.value == -largest.value
    assert [e.expected for e in smallest.evaluations] == [-e.expected for e in largest.evaluations]
    assert str(largest).startswith("maximum -")


def test_points_stay_within_their_bounds_and_come_as_bounds_were_given():
    got = []

    def objective(x):
        got.append(x)
        return float(x.sum())

    result = optimise(objective, [(0.1, 0.3), (1e9, 1e9 + 0.7)], 8, seed=1, progress=False)
    assert all(isinstance(x, np.ndarray) and x.shape == (2,) and x.dtype == np.float64 for x in got)
    assert isinstance(result.x, np.ndarray)
    assert all(0.1 <= x[0] <= 0.3 and 1e9 <= x[1] <= 1e9 + 0.7 for x in got)
    assert "x[1]" in str(result)
    assert optimise(lambda x: x.sum(), np.array([[0.0, 1.0]]), 1, progress=False).x.shape == (1,)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_a_tensor_of_bounds_is_botorchs(d):
    low, high = torch.arange(d, dtype=torch.float64), torch.arange(d, dtype=torch.float64) + 10.0
    box = Box.of(torch.stack([low, high]))
    assert box.pairs == tuple((float(i), float(i) + 10.0) for i in range(d))
    # Lists and arrays are pairs, also where they are 2 x 2.
    pairs = [list(pair) for pair in box.pairs]
    assert Box.of(pairs) == Box.of(np.array(pairs)) == box


@pytest.mark.parametrize("number", [1.5, 2, np.float32(0.5), np.int64(3), torch.tensor([[4.0]], requires_grad=True)])
def test_any_kind_of_number_is_a_value(number):
    result = run(lambda x: number, 1)
    assert result.value == float(torch.as_tensor(number).detach())
    assert type(result.evaluations[0].value) is float


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        (math.nan, "nan"),
        (math.inf, "inf"),
        (np.float64("-inf"), "-inf"),
        (None, "None, which is not a number"),
        ("1.5", "a value of type str, which is not a number"),
        (True, "type bool, which is not a number"),
        (1j, "type complex, which is not a number"),
        ([1.0, 2.0], "type list, which is not a number"),
        ([[1.0], [2.0, 3.0]], "inhomogeneous"),
    ],
)
def test_values_that_are_not_finite_numbers_are_recorded_and_skipped(returned, reason):
    result = run(lambda x: returned, 2)
    assert [e.value for e in result.evaluations] == [None, None]
    assert all(re.search(reason, e.reason) for e in result.failed)


def test_failed_evaluations_count_and_their_points_are_avoided(tmp_path):
    path = tmp_path / "trace.jsonl"

    def no_value():
        raise EvaluationError("no flour")

    objective = Recorded({2: fail, 6: fail, 7: no_value, 8: lambda: math.nan})
    result = run(objective, 9, trace=path)
    assert len(objective.points) == 9
    assert [e.number for e in result.failed] == [2, 6, 7, 8]
    reasons = ["RuntimeError: the oven is cold"] * 2 + ["no flour", "it returned nan"]
    assert [e.reason for e in result.failed] == reasons
    assert all(f"  {e.number}  {e.reason}" in str(result) for e in result.failed)
    assert all(e.weight is None and e.expected is None for e in result.failed)
    unit = Box.of(BOUNDS).to_unit(objective.points)
    for e in result.failed:
        distance = (unit[e.number :] - unit[e.number - 1]).abs().amax(dim=-1)
        assert (distance > 1e-3).all()
    again = Recorded()
    resumed = run(again, 9, trace=path)
    assert not again.points  # failed ones are not tried again
    assert [(e.number, e.reason) for e in resumed.failed] == [(e.number, e.reason) for e in result.failed]


def test_no_point_is_proposed_where_an_evaluation_failed():
    """Failures wherever the model would look: the same model, with one more failed point each time."""
    X = torch.rand(8, 2, dtype=torch.double)
    surrogate = fit_surrogate(X, -(X - 0.4).square().sum(-1))
    failed = torch.empty(0, 2, dtype=torch.double)
    for _ in range(3):
        point = next_point(surrogate, failed, number=9, seed=0)
        assert ((failed - point).abs().amax(dim=-1) > 1e-3).all()
        failed = torch.cat([failed, point[None]])


def test_a_reason_is_short():
    def objective(x):
        raise RuntimeError("x" * 10_000)

    assert len(run(objective, 1).evaluations[0].reason) == 500


def test_if_nothing_has_a_value_there_is_no_best():
    result = run(lambda x: fail(), 5)
    assert result.x is result.value is result.number is None
    assert len(result.failed) == 5
    assert str(result).startswith("5 evaluations, none of which has a value\n5 failed evaluations:\n  1  RuntimeError")


@pytest.mark.parametrize(("initial", "made"), [(None, 5), (2, 5), (7, 7)])
def test_it_stops_if_the_first_evaluations_all_fail_for_the_same_reason(initial, made, tmp_path):
    def objective(x):
        calls.append(x)
        fail()

    calls: list[object] = []
    trace = tmp_path / "trace.jsonl"
    for _ in range(2):  # the second time from the trace, without evaluating anything
        with pytest.raises(EvaluationError, match=f"the first {made} evaluations failed for the same reason: Runtime"):
            run(objective, 20, initial=initial, trace=trace)
        assert len(calls) == made
    events = [json.loads(line).get("event") for line in trace.read_text().splitlines()]
    assert events.count("failed") == made


@pytest.mark.parametrize("returned", [lambda x: x["a"] > 1.0, lambda x: [x["a"], x["b"]], lambda x: str(x["a"])])
def test_it_stops_if_the_first_values_are_of_the_same_wrong_type(returned):
    with pytest.raises(EvaluationError, match="failed for the same reason: it returned a value of type"):
        run(returned, 20)


@pytest.mark.parametrize("other", [lambda: math.nan, lambda: 1.0])
def test_it_continues_if_one_of_the_first_evaluations_differs(other):
    result = run(Recorded({number: other if number == 3 else fail for number in range(1, 7)}), 7)
    assert len(result.evaluations) == 7
    assert result.number in (3, 7)


def test_with_a_single_value_it_is_the_best():
    result = run(Recorded({1: fail, 3: fail}), 3)
    assert result.number == 2
    assert result.value == bowl(result.x)
    assert result.deviation is None
    assert f"evaluation 2, observed {result.value:.6g}" in str(result)


@pytest.mark.filterwarnings("ignore:.*rows are too few:rcgp.botorch.NoiseLawWarning")
def test_equal_values_are_accepted_and_a_huge_one_is_an_outlier():
    assert run(lambda x: 7.0, 6).value == pytest.approx(7.0)
    result = run(Recorded({4: lambda: 1e300}), 8)
    assert bowl(result.x) == pytest.approx(result.value, abs=1.0)
    assert [e.number for e in result.outliers] == [4]


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_deviations_have_the_units_of_values(unit):
    result, plain = (run(lambda x, u=u: u * bowl(x), 7) for u in (unit, 1.0))
    assert result.deviation / unit == pytest.approx(plain.deviation, rel=1e-3)
    last = result.evaluations[-1]
    assert last.deviation / unit == pytest.approx(plain.evaluations[-1].deviation, rel=1e-3)


@pytest.mark.filterwarnings("ignore:.*rows are too few:rcgp.botorch.NoiseLawWarning")
def test_a_value_far_beyond_all_others_is_an_outlier():
    result = run(Recorded({2: lambda: 1.7e308}, lambda x: 1e-9 * bowl(x)), 7)
    assert [e.number for e in result.outliers] == [2]
    assert 0 < result.value < 1e-7


@pytest.mark.parametrize(
    ("name", "error"),
    [("fit_silently", FitError("no start", 0)), ("fit_silently", NanError()), ("optimize_acqf", NotPSDError())],
)
def test_a_step_that_cannot_be_computed_takes_a_point_that_fills_the_box(monkeypatch, name, error):
    def broken(*_, **__):
        raise error

    objective = Recorded()
    monkeypatch.setattr(suggesting, name, broken)
    result = run(objective, 7)
    assert objective.points[-1] == tuple(Box.of(BOUNDS).from_unit(sobol_point(2, 7, 0)).values())
    assert bowl(result.x) == min(map(bowl, (e.x for e in result.evaluations)))


def test_the_same_seed_gives_the_same_points_whatever_the_global_generators():
    first, second, third = Recorded(), Recorded(), Recorded()
    torch.manual_seed(1)
    run(first, 6)
    torch.manual_seed(2)
    np.random.seed(5)
    before = torch.get_rng_state()
    run(second, 6)
    assert torch.equal(torch.get_rng_state(), before)
    run(third, 1, seed=1)
    assert first.points == second.points
    assert first.points[0] != third.points[0]


def test_first_points_fill_the_box():
    objective = Recorded()
    run(objective, 8, initial=8)
    expected = [tuple(Box.of(BOUNDS).from_unit(sobol_point(2, number, 0)).values()) for number in range(1, 9)]
    assert objective.points == expected
    halves = (Box.of(BOUNDS).to_unit(objective.points) > 0.5).sum(dim=0)
    assert halves.tolist() == [4, 4]


@pytest.fixture(scope="module")
def uninterrupted():
    """A run of seven evaluations; the third is wrong."""
    torch.set_num_threads(1)
    objective = Recorded({3: 40.0})
    return run(objective, 7), objective


@pytest.mark.parametrize("stop", [2, 6])
@pytest.mark.filterwarnings("ignore:.*rows are too few:rcgp.botorch.NoiseLawWarning")
def test_after_an_interrupt_the_trace_resumes_as_if_uninterrupted(tmp_path, stop, uninterrupted):
    path, (whole, objective) = tmp_path / "trace.jsonl", uninterrupted
    first = Recorded({3: 40.0, stop: interrupt})
    with pytest.raises(KeyboardInterrupt):
        run(first, 7, trace=path)
    last = json.loads(path.read_text().splitlines()[-1])
    assert (last["event"], last["number"]) == ("started", stop)
    second = Recorded({4 - stop: 40.0})  # its first call is number `stop`
    resumed = run(second, 7, trace=path)
    assert first.points[:-1] + second.points == objective.points
    assert second.points[0] == first.points[-1]  # started and not finished: evaluated again
    assert str(resumed) == str(whole)
    assert [e.value for e in resumed.evaluations] == [e.value for e in whole.evaluations]


def test_a_seed_that_was_drawn_is_kept_in_the_trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    first, second, whole = Recorded(), Recorded(), Recorded()
    run(first, 5, trace=path, seed=None)
    run(second, 6, trace=path, seed=None)
    run(whole, 6, seed=json.loads(path.read_text().splitlines()[0])["seed"])
    assert first.points + second.points == whole.points


def test_a_finished_trace_repeats_its_result_and_a_larger_budget_continues(tmp_path):
    path = tmp_path / "trace.jsonl"
    result = run(Recorded(), 5, trace=path)
    before, none, two = path.read_bytes(), Recorded(), Recorded()
    assert str(run(none, 5, trace=path)) == str(result)
    assert str(run(none, 3, trace=path)) == str(result)  # nothing that is known is left out
    assert not none.points
    assert path.read_bytes() == before
    run(two, 7, trace=path)
    assert len(two.points) == 2


def test_a_trace_of_other_bounds_is_refused_before_anything_is_evaluated(tmp_path):
    path, objective = tmp_path / "trace.jsonl", Recorded()
    run(Recorded(), 1, trace=path)
    with pytest.raises(ValueError, match=r"trace .*another optimisation: its bounds"):
        optimise(objective, {"a": (-2.0, 4.0), "b": (10.0, 20.0)}, 2, trace=path, progress=False)
    with pytest.raises(ValueError, match=r"trace .*another optimisation: its maximise is false and not true"):
        run(objective, 2, trace=path, maximise=True)
    assert not objective.points


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"bounds": {}}, ValueError, "bounds are empty"),
        ({"bounds": []}, ValueError, "bounds are empty"),
        ({"bounds": {"a": (0, math.inf)}}, ValueError, "bounds of parameter 'a' must be finite"),
        ({"bounds": [(0, 1), (math.nan, 1)]}, ValueError, "bounds of parameter 1 must be finite"),
        ({"bounds": [(-1e308, 1e308)]}, ValueError, "bounds of parameter 0 must be finite"),
        ({"bounds": {"a": (1, 0)}}, ValueError, "bounds of parameter 'a' must be low < high"),
        ({"bounds": {"a": (1, 1)}}, ValueError, "bounds of parameter 'a' must be low < high"),
        ({"bounds": {"a": 1}}, ValueError, "bounds of parameter 'a' must be a pair"),
        ({"bounds": {"a": "01"}}, ValueError, r"must be a pair \(low, high\), got '01'$"),
        ({"bounds": [(0, 1, 2)]}, ValueError, "bounds of parameter 0 must be a pair"),
        ({"bounds": np.zeros((2, 3))}, ValueError, "bounds of parameter 0 must be a pair"),
        ({"bounds": {"a": [1, 2, 3]}}, ValueError, r"must be a pair \(low, high\), got \[1, 2, 3\]$"),
        ({"bounds": torch.zeros(3, 2)}, ValueError, r"2 x d: a row of lows and a row of highs; got shape \(3, 2\)"),
        ({"bounds": torch.zeros(2)}, ValueError, r"2 x d: .* got shape \(2,\)"),
        ({"bounds": {"a": ("0", "b")}}, ValueError, "bounds of parameter 'a' must be a pair"),
        ({"bounds": {1: (0, 1)}}, TypeError, "bounds must have names"),
        ({"bounds": "x:0:1"}, TypeError, "bounds must be a dictionary"),
        ({"bounds": 3}, TypeError, "bounds must be a dictionary"),
        ({"budget": 0}, ValueError, "budget must be at least 1"),
        ({"budget": -3}, ValueError, "budget must be at least 1"),
        ({"budget": 5.0}, TypeError, "budget must be a whole number"),
        ({"budget": True}, TypeError, "budget must be a whole number"),
        ({"initial": 0}, ValueError, "initial must be at least 1"),
        ({"seed": -1}, ValueError, "seed must be at least 0"),
        ({"seed": "a"}, TypeError, "seed must be a whole number"),
        ({"maximise": "yes"}, TypeError, "maximise must be True or False"),
        ({"trace": 3}, TypeError, "trace must be a path"),
        ({"trace": "no/such/folder/trace.jsonl"}, ValueError, "trace .*cannot be written"),
        ({"objective": 3}, TypeError, "objective must be a function"),
    ],
)
def test_bad_arguments_are_named_before_anything_is_evaluated(changed, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    objective = Recorded()
    with pytest.raises(error, match=message):
        optimise(**{"objective": objective, "bounds": BOUNDS, "budget": 3, "progress": False, **changed})
    assert not objective.points


def test_progress_is_passed_to_a_function_or_shown_or_neither(capsys):
    told = []
    result = run(Recorded(), 6, progress=lambda done, best: told.append((done, best)))
    assert [done for done, _ in told] == list(range(7))
    assert all(math.isnan(best) for _, best in told[:5])
    assert told[-1] == (6, result.value)
    assert capsys.readouterr() == ("", "")
    shown = run(Recorded(), 5, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"optimise: 5 of 5 evaluations, best {shown.value:.6g}\n"


def test_reasons_do_nothing_to_a_terminal():
    def objective(x):
        raise EvaluationError("\x1b]0;owned\x07 it failed")

    assert "\\x1b]0;owned\\x07 it failed" in str(run(objective, 2))


@pytest.mark.slow
def test_the_pages_python_runs(capsys):
    """What the page on optimisation shows, but for its part on Ax."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "optimisation.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page.partition("\n## Ax")[0], re.DOTALL):
        exec(compile(block, "docs/optimisation.md", "exec"), names)
    assert torch.allclose(names["candidate"], torch.tensor(0.4, dtype=torch.double), atol=0.1)
    assert float(names["model"].outlier_probability()[3]) > 0.9
    assert float(names["tasks"].outlier_probability()[7]) > 0.9
    best = names["result"].x
    assert best["depth"] == pytest.approx(4.0, abs=0.3)
    text = capsys.readouterr().out
    assert "outlying evaluation" in text
