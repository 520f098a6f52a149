"""Every pair of values of type, batch shape, outputs, transforms, outliers and weight."""

from __future__ import annotations

from itertools import combinations, product
from typing import NamedTuple

import pytest
import torch
from botorch.acquisition import (
    ProbabilityOfImprovement,
    UpperConfidenceBound,
    qKnowledgeGradient,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
    qUpperConfidenceBound,
)
from botorch.acquisition.analytic import LogExpectedImprovement
from botorch.acquisition.objective import LinearMCObjective, ScalarizedPosteriorTransform
from botorch.sampling import SobolQMCNormalSampler

from problems_of_botorch import INPUTS, OUTCOMES, D, make_data, make_model, state_of

# Raised once in a process, inside linear_operator, by cached roots of several outputs.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")


class Case(NamedTuple):
    dtype: torch.dtype
    batch: tuple[int, ...]
    m: int
    inputs: str
    outcomes: str
    outliers: bool
    weight: str

    def __str__(self):
        batch, outliers = "x".join(map(str, self.batch)) or "single", "outliers" if self.outliers else "clean"
        parts = (str(self.dtype)[6:], batch, f"{self.m}outputs", self.inputs, self.outcomes, outliers, self.weight)
        return "-".join(parts)

    def make(self):
        X, Y = make_data(batch=self.batch, m=self.m, outliers=self.outliers, dtype=self.dtype)
        return make_model(X, Y, inputs=self.inputs, outcomes=self.outcomes, weight=self.weight), X, Y

    def points_to_predict(self, q):
        generator = torch.Generator().manual_seed(5)
        return torch.rand(*self.batch, q, D, generator=generator, dtype=torch.float64).to(self.dtype)


VALUES = (
    (torch.float64, torch.float32),
    ((), (2,), (2, 1)),
    (1, 2),
    tuple(INPUTS),
    tuple(OUTCOMES),
    (True, False),
    ("learned", "imq"),
)


def pairwise(values):
    """Few combinations in which every two values of different factors meet: greedy, from all combinations."""
    candidates = [Case(*combination) for combination in product(*values)]
    pairs = [{(i, j, case[i], case[j]) for i, j in combinations(range(len(values)), 2)} for case in candidates]
    missing, chosen = set().union(*pairs), []
    while missing:
        best = max(range(len(pairs)), key=lambda number: len(pairs[number] & missing))
        chosen.append(candidates[best])
        missing -= pairs[best]
    return chosen


CASES = pairwise(VALUES)


def of_cases(condition=lambda case: True):
    cases = [case for case in CASES if condition(case)]
    return pytest.mark.parametrize("made", cases, ids=str, indirect=True, scope="module")


@pytest.fixture(scope="module")
def made(request):
    """A case, its model and its data."""
    return request.param, *request.param.make()


@of_cases()
def test_predictions_are_finite_and_differentiable(made):
    case, model, _, _ = made
    x = case.points_to_predict(3).requires_grad_()
    posterior = model.posterior(x)
    assert model.batch_shape == torch.Size(case.batch)
    assert model.num_outputs == case.m
    for values in (posterior.mean, posterior.variance):
        assert values.shape == (*case.batch, 3, case.m)
        assert values.dtype == case.dtype
        assert values.isfinite().all()
    assert (posterior.variance > 0).all()
    gradients = [torch.autograd.grad(values.sum(), x, retain_graph=True)[0] for values in (posterior.mean, values)]
    for gradient in gradients:
        assert gradient.isfinite().all()
        assert (gradient != 0).all()


@of_cases(lambda case: case.batch and case.dtype == torch.float64)
def test_member_of_a_batch_is_the_single_model(made):
    case, model, X, Y = made
    index = (1,) if case.batch == (2,) else (1, 0)
    single = make_model(X[index], Y[index], inputs=case.inputs, outcomes=case.outcomes, weight=case.weight)
    single.load_state_dict(state_of(model, index, case.batch))
    x = case.points_to_predict(3)
    batched, posterior = model.posterior(x), single.posterior(x[index])
    torch.testing.assert_close(batched.mean[index], posterior.mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(batched.variance[index], posterior.variance, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(model.weights()[index], single.weights(), rtol=1e-8, atol=1e-8)


@of_cases()
def test_analytic_acquisition_functions_run(made):
    case, model, _, _ = made
    x = case.points_to_predict(1).requires_grad_()
    # Of a nonlinear transform's posterior, which is not Gaussian, BoTorch knows no linear combinations.
    if case.m > 1 and case.outcomes == "log":
        model = model.subset_output([1])
    several = model.num_outputs > 1
    transform = ScalarizedPosteriorTransform(torch.ones(case.m, dtype=case.dtype)) if several else None
    best = model.posterior(x, posterior_transform=transform).mean.mean().item()
    for acquisition in (
        UpperConfidenceBound(model, beta=4.0, posterior_transform=transform),
        ProbabilityOfImprovement(model, best_f=best, posterior_transform=transform),
        LogExpectedImprovement(model, best_f=best, posterior_transform=transform),
    ):
        assert_acquires(acquisition, x, case.batch)


@of_cases()
def test_monte_carlo_acquisition_functions_run(made):
    case, model, X, _ = made
    x = case.points_to_predict(2).requires_grad_()
    sampler = SobolQMCNormalSampler(torch.Size([4]), seed=0)
    objective = LinearMCObjective(torch.ones(case.m, dtype=case.dtype)) if case.m > 1 else None
    best = model.posterior(x).mean.sum(dim=-1).mean().item()
    arguments = {"model": model, "sampler": sampler, "objective": objective}
    for acquisition in (
        qUpperConfidenceBound(beta=4.0, **arguments),
        qLogExpectedImprovement(best_f=best, **arguments),
        qLogNoisyExpectedImprovement(
            X_baseline=X, prune_baseline=not case.batch, cache_root=case.outcomes != "log", **arguments
        ),
    ):
        assert_acquires(acquisition, x, case.batch)


@of_cases(lambda case: case.batch == () and case.m == 1)
def test_knowledge_gradient_runs(made):
    case, model, _, _ = made
    acquisition = qKnowledgeGradient(model, num_fantasies=2)
    x = case.points_to_predict(1 + 2).requires_grad_()  # one candidate, and a solution for each fantasy
    assert_acquires(acquisition, x, case.batch)


def assert_acquires(acquisition, x, batch):
    """One finite number for each model, and the way to more of it."""
    values = acquisition(x)
    assert values.shape == (batch or (1,))
    assert values.isfinite().all()
    (gradient,) = torch.autograd.grad(values.sum(), x)
    assert gradient.isfinite().all()
    assert gradient.abs().sum() > 0
