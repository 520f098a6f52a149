"""What the models say of their own noise laws, and when."""

from __future__ import annotations

import warnings

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood

from problems_of_botorch import make_data, make_model
from rcgp.botorch import MultiTaskRCGP, NoiseLawWarning, SingleTaskRCGP, fit, optimise, robust_model
from rcgp.botorch.robust_model import law_numbers
from rcgp.training import weigh_by_law
from rcgp.training.judgement import judge_rows
from rcgp.weights import NoiseLaw

#: A law by which half of the rows have noise of wide scales.
HEAVY = NoiseLaw((0.5, 0.2, 0.1, 0.1), 0.1, 10.0)


def heavy_tailed(n=40):
    """A model of much noise under a law with a heavy tail."""
    X, Y = make_data(n=n, outliers=False)
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(Y.shape, generator=generator).double()
    noise = torch.where(torch.rand(Y.shape, generator=generator) < 0.4, 5.0 * noise, noise)
    model = make_model(X, Y + noise)
    model.law[:] = model.law.new_tensor(law_numbers(HEAVY, 1.0))
    model.likelihood.noise = 0.05
    return model.eval()


def test_doubts_are_those_of_the_estimators():
    model = heavy_tailed()
    single = model.separable()[()]
    weigh_by_law(single, [model.noise_law])
    judged = judge_rows(single, learn=False)
    torch.testing.assert_close(model.outlier_probability()[:, 0], judged.outlier_probability)
    assert model.doubts == judged.doubts
    assert any("heavy-tailed" in doubt or "count less than half" in doubt for doubt in model.doubts)


def test_doubts_are_the_same_in_training_mode():
    model = heavy_tailed()
    expected = model.doubts
    assert model.train().doubts == expected
    assert model.training


def test_there_are_none_where_no_law_is_learned():
    X, Y = make_data(n=6)
    assert SingleTaskRCGP(X, Y, weight="imq").doubts == ()
    assert SingleTaskRCGP(X, Y).doubts == ("6 rows are too few to tell errors from good observations",)


@pytest.mark.parametrize(("batch", "m", "named"), [((2,), 1, "model 1: "), ((), 2, "output 1: ")])
def test_doubts_of_several_models_have_names(batch, m, named):
    X, Y = make_data(n=6, batch=batch, m=m)
    first, second = SingleTaskRCGP(X, Y).doubts
    assert second == f"{named}6 rows are too few to tell errors from good observations"
    assert first == second.replace("1", "0")


def test_doubts_of_tasks_have_their_values():
    X, Y = make_data(n=16)
    task = (torch.arange(16) < 4).double().unsqueeze(-1) * 3.0  # of tasks 0 and 3 the second has four rows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model = MultiTaskRCGP(torch.cat([X, task], dim=-1), Y, -1)
    few = [doubt for doubt in model.doubts if "too few" in doubt]
    sentence = "rows are too few to tell errors from good observations"
    assert few == [f"task 0: 12 {sentence}", f"task 3: 4 {sentence}"]


def test_a_fit_warns_once_where_it_was_called(monkeypatch):
    X, Y = make_data(n=16)
    model = SingleTaskRCGP(X, Y)
    monkeypatch.setattr(robust_model, "judge_outputs", doubtful)
    with pytest.warns(NoiseLawWarning, match="a majority may be wrong; and more") as caught:
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(NoiseLawWarning) as caught:
        fit(model)
    assert [warning.filename for warning in caught] == [__file__]


def doubtful(model, *, learn):
    (judged,) = JUDGE(model, learn=learn)
    return (
        type(judged)(judged.law, judged.noise, judged.outlier_probability, ("a majority may be wrong", "and more")),
    )


JUDGE = robust_model.judge_outputs


def test_a_small_design_without_flags_is_no_reason_to_warn():
    X, Y = make_data(n=8, outliers=False)
    model = SingleTaskRCGP(X, Y)
    fit(model)
    assert not model.outliers().any()
    assert len(model.doubts) == 1


def test_an_optimisation_warns_at_its_end_alone():
    values = iter([1.0, 2.0, 3.0, 1.5, 50.0, 2.5, 2.0])
    with pytest.warns(NoiseLawWarning, match="7 rows are too few") as caught:
        result = optimise(lambda x: next(values) + x[0], [(0.0, 1.0)], 7, seed=0, progress=False)
    assert [warning.filename for warning in caught] == [__file__]
    assert [e.number for e in result.outliers] == [5]
    assert f"\nin doubt: {'; '.join(result.doubts)}" in str(result)


def test_weights_are_computed_once_for_all_that_need_them(monkeypatch):
    model, calls = heavy_tailed(n=12), []
    monkeypatch.setattr(robust_model, "weigh", lambda *a: calls.append(1) or WEIGH(*a))
    X = model.train_inputs[0]
    model.posterior(X), model.weights(), model.outlier_probability(), model.latent_leave_one_out(), model.noise_law
    assert len(calls) == 1
    model.weights().zero_()
    assert bool((model.weights() > 0).all())
    model.set_train_data(targets=model.train_targets + 1.0)
    model.weights()
    assert len(calls) == 2


WEIGH = robust_model.weigh
