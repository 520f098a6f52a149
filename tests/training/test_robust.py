"""The robust fit: what it finds, what it leaves alone, and what it does not depend on."""

from __future__ import annotations

import copy
from dataclasses import replace

import gpytorch
import numpy as np
import pytest
import torch

from marks import slow
from rcgp import RCGP, FitError, SparseRCGP, fit, fit_robust, posterior_influence
from rcgp.core.exact import LeaveOneOut
from rcgp.core.noise_law import PRIOR_COUNTS, evidence_of_shares, learn_law, log_bound
from rcgp.core.pseudo import pseudo_data
from rcgp.models.defaults import add_weak_priors, robust_spread
from rcgp.training import weigh_by_law
from rcgp.training.fit import fit_ordinary
from rcgp.training.learning import Learning
from rcgp.training.objectives import log_prior
from rcgp.weights import Constant, LawWeight


def make_data(n=100, share=0.1, size=5.0, seed=0, d=1, noise=0.1, one_sided=True):
    random = np.random.default_rng(seed)
    X = random.uniform(0, 6, (n, d))
    f = np.sin(X[:, 0]) + 0.3 * X[:, 1:].sum(axis=1)
    y = f + noise * random.standard_normal(n)
    wrong = random.permutation(n)[: round(share * n)]
    y[wrong] += size if one_sided else size * random.choice([-1.0, 1.0], len(wrong))
    return torch.from_numpy(X), torch.from_numpy(y), torch.from_numpy(f), wrong


def make_model(X, y, **options):
    model = RCGP(X, y, mean="median", **options)
    add_weak_priors(model)
    return model


def error_of(model, X, f):
    with torch.no_grad():
        return float((model.posterior(X).mean - f).abs().mean())


@pytest.mark.parametrize(("d", "share"), [(1, 0.05), (3, 0.15), (1, 0.3), slow(3, 0.05), slow(1, 0.15), slow(3, 0.3)])
def test_outliers_are_flagged_and_hardly_raise_the_error(d, share):
    X, y, f, wrong = make_data(120, share, d=d)
    clean = make_model(*make_data(120, 0.0, d=d)[:2], weight=Constant())
    fit(clean, "marginal")
    model = make_model(X, y)
    report = fit_robust(model)
    flagged = (model.outlier_probability() > 0.5).nonzero().squeeze(-1).tolist()
    assert set(wrong) <= set(flagged)
    assert len(flagged) <= len(wrong) + 3
    assert error_of(model, X, f) < 1.3 * error_of(clean, X, f)
    assert report.law.outlier_share == pytest.approx(share, abs=0.05)
    assert report.evidence > report.normal_evidence


@pytest.mark.parametrize("seed", [0, slow(1), slow(2)])
def test_clean_data_give_the_ordinary_gp(seed):
    X, y, _, _ = make_data(60, 0.0, seed=seed)
    robust, plain = make_model(X, y), make_model(X, y, weight=Constant())
    report = fit_robust(robust)
    expected = fit(plain, "marginal")
    assert report.law.is_normal
    assert isinstance(robust.weight, Constant)
    assert bool((robust.weights() == 1.0).all())
    assert report.value == expected.value
    for ours, theirs in zip(robust.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("seed", [0, slow(1), slow(2)])
def test_the_evidence_is_no_less_than_that_of_the_ordinary_gp(seed):
    """With hardly any noise most of the gain comes after the first iterations."""
    random = np.random.default_rng(seed)
    X = torch.from_numpy(random.random((40, 2)))
    y = torch.sin(6 * X).sum(dim=-1) + 0.01 * torch.from_numpy(random.standard_normal(40))
    plain = make_model(X, y, weight=Constant())
    value = fit(plain, "marginal").value
    report = fit_robust(make_model(X, y))
    assert report.value >= value
    assert report.normal_evidence == value or report.evidence > value


@pytest.mark.parametrize("y", [lambda x: torch.ones_like(x), torch.sin], ids=["constant", "sine"])
def test_without_noise_no_local_noise_is_learned(y):
    X = torch.linspace(0.0, 6.0, 40, dtype=torch.float64).unsqueeze(-1)
    report = fit_robust(make_model(X, y(X[:, 0])))
    assert not report.local_noise


CASES = {
    "all": ({}, {}),
    "one noise": ({}, {"local_noise": False}),
    "sample weights": ({"sample_weight": torch.linspace(0.5, 2.0, 100, dtype=torch.float64)}, {}),
    "restarts": ({}, {"restarts": 2, "seed": 0}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_evidence_is_that_of_the_model(case):
    model_options, options = CASES[case]
    model = make_model(*make_data(size=3.0, noise=0.2)[:2], **model_options)
    report = fit_robust(model, **options)
    assert report.evidence > report.normal_evidence
    with torch.no_grad():
        residual, weight = model.residual(), model.weight
        rows = weight.responsibilities(residual, model.noise)
        row_noise = model.noise * weight.local * weight.relative
        pseudo = pseudo_data(residual, rows.weight, torch.zeros_like(residual), row_noise)
        width = 5.0 * robust_spread(residual)
        found = model.signal_evidence(pseudo) + log_bound(row_noise, rows, width) + log_prior(model)
    assert float(found) == pytest.approx(report.evidence, rel=1e-9)
    assert max(step.evidence for step in report.rounds) <= report.evidence + 1.0  # what a converged state may lose
    assert len(report.rounds) < 40


def test_a_law_that_flags_rows_is_kept_unless_normal_noise_is_better_under_the_same_prior():
    """Few rows for each input: an ordinary GP with much noise has about the same evidence, and a larger error."""
    close = []
    for seed in range(6):
        random = np.random.default_rng(seed)
        X = random.random((26, 8))
        f = np.sin(3.0 * X[:, 0]) + X[:, 1] * X[:, 2] - X[:, 3] ** 2
        wrong = random.permutation(26)[:9]
        y = f + 0.05 * random.standard_normal(26)
        y[wrong] += random.choice([-1.0, 1.0], 9) * random.uniform(2.0, 5.0, 9)
        X, f, y = (torch.from_numpy(part) for part in (X, f, y))
        model = make_model(X, y)
        report = fit_robust(model)
        if not report.law.is_normal and report.evidence < report.normal_evidence:
            assert report.evidence > report.normal_evidence + float(evidence_of_shares(y.new_tensor([26.0, 0.0, 0.0])))
            assert (model.outlier_probability() > 0.5).any()
            assert report.value == report.evidence
            assert ": kept, " in str(report)
            plain = make_model(X, y, weight=Constant())
            fit(plain, "marginal")
            close.append(error_of(model, X, f) / error_of(plain, X, f))
    assert close
    assert np.mean(close) < 0.8


def test_restarted_weights_are_kept_if_the_evidence_grows():
    """Three rows of a narrow peak have lost their weight, which no number of expectation steps gives back."""
    X = torch.linspace(0.0, 6.0, 40, dtype=torch.float64).unsqueeze(-1)
    noise = 0.001 * torch.from_numpy(np.random.default_rng(0).standard_normal(40))
    model = make_model(X, torch.sin(3.0 * X[:, 0]) + 2.0 * torch.exp(-(((X[:, 0] - 3.0) / 0.3) ** 2)) + noise)
    model.kernel.base_kernel.lengthscale, model.noise = 0.4, 1e-6
    learning = Learning(model, 100, False, lambda evaluations, best: None)
    weight = torch.ones(40, dtype=torch.float64).index_fill(0, torch.tensor([19, 20, 21]), 1e-6)
    ones, counts = torch.ones_like(weight), torch.tensor(PRIOR_COUNTS).double()
    with torch.no_grad():
        prior = learn_law(
            model.residual(),
            LeaveOneOut(0.0 * ones, ones),
            model.noise,
            ones,
            learning.expectation.widths[0],
            bounds=None,
            counts=counts,
            learn=False,
        )
    learning.state = replace(learning.state, weight=weight, learned=(prior,))
    for _ in range(6):
        stuck = learning._expect("finish")
    found = learning._reweighed()
    assert found.evidence > stuck.evidence + 5.0
    assert learning.state is found
    assert learning._reweighed().evidence >= found.evidence


@pytest.mark.parametrize("loud", [1e-8, 1.0])
def test_the_sample_weight_of_one_row_does_not_change_the_flags_of_the_others(loud):
    X, y, _, wrong = make_data(60)
    precision = torch.ones(60, dtype=torch.float64)
    good = next(i for i in range(60) if i not in wrong)
    precision[good] = loud
    model = make_model(X, y, sample_weight=precision)
    law = fit_robust(model, local_noise=False).law
    weigh_by_law(model, [law])
    flagged = (model.outlier_probability() > 0.5).nonzero().squeeze(-1).tolist()
    assert sorted(set(flagged) - {good}) == sorted(wrong)  # that row may be anything


def test_heavy_tails_are_learned_without_flags():
    random = np.random.default_rng(1)
    X = torch.from_numpy(random.uniform(0, 6, (300, 1)))
    y = torch.sin(X[:, 0]) + 0.1 * torch.from_numpy(random.standard_t(3, 300))
    model = make_model(X, y)
    law = fit_robust(model).law
    assert not law.is_normal
    assert law.variance > 1.2
    assert float((model.outlier_probability() > 0.5).double().mean()) < 0.03


def test_noise_that_grows_is_followed_where_it_is_allowed():
    random = np.random.default_rng(0)
    X = torch.from_numpy(np.sort(random.uniform(0, 1, (150, 1)), axis=0))
    y = torch.sin(6 * X[:, 0]) + (0.02 + 0.6 * X[:, 0] ** 2) * torch.from_numpy(random.standard_normal(150))
    local, constant = make_model(X, y), make_model(X, y)
    assert fit_robust(local).local_noise
    factor, before = local.local_noise, local.local_noise(local.train_X)
    local.kernel.base_kernel.lengthscale = 1e3  # what was learned with the kernel as it was stays
    torch.testing.assert_close(factor(local.train_X), before, rtol=0.0, atol=0.0)
    assert not fit_robust(constant, local_noise=False).local_noise
    low, high = local.noise_scale(torch.tensor([[0.1], [0.95]]).double()).tolist()
    assert high > 2 * low
    assert constant.local_noise is None


def test_equal_noise_is_not_taken_for_local_noise():
    """Of 40 such data sets 3 gain more than a nat by chance, none of these."""
    for seed in range(8):
        X, y, _, _ = make_data(60, seed=seed)
        assert not fit_robust(RCGP(X, y, mean="median")).local_noise


def test_a_given_law_weights_rows_as_the_fit_did():
    X, y, _, wrong = make_data()
    model = make_model(X, y)
    law = fit_robust(model, local_noise=False).law
    weights, predicted = model.weights(), model.posterior(X).mean.detach()
    weigh_by_law(model, [law])
    torch.testing.assert_close(model.weights(), weights, atol=0.02, rtol=0)
    torch.testing.assert_close(model.posterior(X).mean.detach(), predicted, atol=0.01, rtol=0)
    assert float(model.weights()[wrong].max()) < 0.01


@pytest.mark.parametrize("n", [100, 400])  # from 375 rows on starts are tried on a sample
def test_the_order_of_the_rows_does_not_matter(n):
    X, y, _, _ = make_data(n)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    one, other = make_model(X, y), make_model(X[order], y[order])
    fit_robust(one)
    fit_robust(other)
    torch.testing.assert_close(other.weights(), one.weights()[order], atol=1e-4, rtol=0)
    torch.testing.assert_close(other.posterior(X).mean, one.posterior(X).mean, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("n", "unit", "offset"),
    [
        (100, 1e-100, 0.0),
        (400, 1e6, 3e7),
        (100, 1e100, 0.0),
        slow(400, 1e-100, 0.0),
        slow(100, 1e6, 3e7),
        slow(400, 1e100, 0.0),
    ],
)
def test_units_do_not_matter(n, unit, offset):
    X, y, _, _ = make_data(n)
    one, other = make_model(X, y), make_model(1e3 * X + 5.0, unit * y + offset)
    fit_robust(one)
    fit_robust(other)
    torch.testing.assert_close(other.weights(), one.weights(), atol=1e-3, rtol=0)
    scaled = (other.posterior(1e3 * X + 5.0).mean.detach() - offset) / unit
    torch.testing.assert_close(scaled, one.posterior(X).mean.detach(), atol=1e-3, rtol=0)


@pytest.mark.parametrize("far", [1e3, slow(1e12), 1e300])
def test_how_far_an_outlier_lies_does_not_matter(far):
    X, y, f, wrong = make_data()
    y[wrong[0]] = far
    model = make_model(X, y)
    fit_robust(model)
    assert model.outlier_probability()[wrong[0]] > 0.99
    assert error_of(model, X, f) < 0.06


def test_the_influence_of_an_observation_is_bounded():
    X, y, _, _ = make_data()
    model = make_model(X, y)
    fit_robust(model)
    values = torch.tensor([1e1, 1e2, 1e6, 1e150, 1e300, torch.inf], dtype=torch.float64)
    influence = posterior_influence(model, 7, torch.cat([-values, values]))
    assert bool(influence.isfinite().all())
    assert float(influence.max()) < 20.0


def test_fixed_hyperparameters_stay_fixed():
    X, y, _, wrong = make_data()
    model = make_model(X, y, noise=0.02)
    model.raw_noise.requires_grad_(False)
    model.kernel.base_kernel.raw_lengthscale.requires_grad_(False)
    lengthscale = model.kernel.base_kernel.lengthscale.clone()
    fit_robust(model)
    assert model.noise.item() == pytest.approx(0.02)
    assert torch.equal(model.kernel.base_kernel.lengthscale, lengthscale)
    assert bool((model.outlier_probability()[wrong] > 0.5).all())


def test_a_trainable_mean_is_fitted():
    X, y, f, wrong = make_data()
    model = RCGP(X, y + 5.0 * X[:, 0], mean=gpytorch.means.LinearMean(1))
    fit_robust(model)
    assert error_of(model, X, f + 5.0 * X[:, 0]) < 0.1
    assert bool((model.outlier_probability()[wrong] > 0.5).all())


def test_sample_weights_are_precisions():
    X, y, f, _wrong = make_data(share=0.0)
    poor = torch.arange(len(y)) % 2 == 0
    y = torch.where(poor, f + 5.0 * (y - f), y)
    model = make_model(X, y, sample_weight=torch.where(poor, 1.0, 25.0).double())
    fit_robust(model)
    assert float(model.outlier_probability().max()) < 0.5
    assert error_of(model, X, f) < 0.05


def test_a_float32_model_is_fitted_in_float64():
    X, y, _, wrong = make_data()
    model = make_model(X.float(), y.float())
    fit_robust(model)
    assert model.noise.dtype == model.weight.mean.dtype == torch.float32
    assert bool((model.outlier_probability()[wrong] > 0.5).all())
    assert model.posterior(X.float()).variance.isfinite().all()


def test_a_sparse_model_has_the_same_fit():
    X, y, f, wrong = make_data(200)
    model = SparseRCGP(X, y, inducing=25, mean="median")
    add_weak_priors(model)
    report = fit_robust(model)
    assert bool((model.outlier_probability()[wrong] > 0.5).all())
    assert error_of(model, X, f) < 0.06
    assert not report.local_noise


def test_restarts_are_seeded_and_no_worse():
    X, y, _, _ = make_data(40)
    once = fit_robust(make_model(X, y))
    one, two = (fit_robust(make_model(X, y), restarts=2, seed=3) for _ in range(2))
    assert one.starts == two.starts
    assert len(one.starts) == 5  # quiet, longer lengthscales, the given ones, two random
    assert one.value >= once.value - 1e-6


@pytest.mark.parametrize("n", [100, 400])
def test_an_interrupted_fit_leaves_the_model_as_it_was(n):
    X, y, _, _ = make_data(n)
    model = make_model(X, y)
    weight, before = model.weight, copy.deepcopy(model.state_dict())

    def interrupt(evaluations, best):
        if evaluations > 15:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_robust(model, progress=interrupt)
    assert model.weight is weight
    assert torch.equal(model.train_X, X)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_second_fit_starts_from_the_first():
    X, y, _, _ = make_data()
    model = make_model(X, y)
    first = fit_robust(model)
    assert fit_robust(model).value == pytest.approx(first.value, abs=2.0)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_few_rows_are_fitted(n):
    X, y, _, _ = make_data(n, 0.0)
    model = make_model(X, y)
    fit_robust(model)
    assert bool(model.posterior(X).mean.isfinite().all())
    assert bool((model.weights() > 0.5).all())


def test_repeated_rows_and_constant_observations_are_fitted():
    X = torch.zeros(20, 2, dtype=torch.float64)
    for y in (torch.full((20,), 3.0).double(), torch.where(torch.arange(20) == 4, 9.0, 3.0).double()):
        model = make_model(X, y)
        fit_robust(model)
        assert model.posterior(X[:1]).mean.item() == pytest.approx(3.0, abs=0.1)


def test_the_report_shows_the_law_and_its_rounds():
    X, y, _, _ = make_data()
    report = fit_robust(make_model(X, y))
    text = str(report)
    assert "log evidence" in text
    assert "outlier" in text
    names = [step.name for step in report.rounds]
    assert names[0] == "start"
    assert "finish" in names
    assert report.evaluations >= report.rounds[-1].evaluations > 0


def test_arguments_other_than_models_are_refused():
    with pytest.raises(TypeError, match="model must be an RCGP"):
        fit_robust("model")


def test_a_fit_that_cannot_be_computed_raises():
    X, y, _, _ = make_data(10)

    class Broken(gpytorch.kernels.RBFKernel):
        def forward(self, x1, x2, **params):
            return super().forward(x1, x2, **params) * (torch.nan if broken else 1.0)

    broken = False
    model = RCGP(X, y, kernel=Broken())
    weight, broken = model.weight, True
    with pytest.raises(FitError):
        fit_robust(model)
    assert model.weight is weight


def test_weights_are_those_of_the_law_and_its_predictions():
    X, y, _, _ = make_data()
    model = make_model(X, y)
    fit_robust(model)
    assert isinstance(model.weight, LawWeight)
    rows = model.weight.responsibilities(model.residual(), model.noise)
    torch.testing.assert_close(model.weights(), (rows.precision / model.weight.local).sqrt().detach())
    torch.testing.assert_close(rows.share.sum(dim=-1), torch.ones_like(y))


def test_the_final_weights_are_those_of_the_fit_with_sample_weights_too():
    X, y, _, wrong = make_data()
    precision = torch.where(torch.arange(len(y)) % 2 == 0, 1.0, 16.0).double()
    model = make_model(X, y, sample_weight=precision)
    report = fit_robust(model, local_noise=False)
    kept = [step.kept for step in report.rounds if step.evidence == report.evidence]
    assert float(model.weights().square().sum()) == pytest.approx(kept[-1], rel=1e-6)
    assert bool((model.outlier_probability()[wrong] > 0.5).all())


@pytest.mark.parametrize("share", [slow(0.0), 0.1])
def test_a_function_with_much_shorter_lengthscales_than_the_initial_ones_is_fitted(share):
    random = np.random.default_rng(0)
    X = torch.from_numpy(random.uniform(0, 10, (200, 1)))
    f = torch.sin(8 * X[:, 0])
    y = f + 0.1 * torch.from_numpy(random.standard_normal(200))
    y[torch.from_numpy(random.random(200) < share)] += 4.0
    model = make_model(X, y)
    fit_robust(model)
    assert error_of(model, X, f) < 0.08


@pytest.mark.parametrize("weight", ["learned", "constant"])
def test_a_function_with_a_period_of_six_rows_is_found(weight):
    random = np.random.default_rng(0)
    X = torch.arange(240.0, dtype=torch.float64).unsqueeze(-1)
    f = torch.sin(2.0 * torch.pi * X[:, 0] / 6.3)
    y = f + 0.1 * torch.from_numpy(random.standard_normal(240))
    model = make_model(X, y)
    if weight == "learned":
        y[::12] += 3.0
        fit_robust(model)
    else:
        model.weight = Constant()
        fit_ordinary(model)
    assert error_of(model, X, f) < 0.1


def test_many_outliers_of_a_smooth_function_are_flagged():
    X, y, f, wrong = make_data(60, 0.35, d=6, one_sided=False)
    model = make_model(X, y)
    report = fit_robust(model)
    quiet, smooth, given = report.starts
    assert max(quiet, smooth) > given + 5.0
    flagged = set((model.outlier_probability() > 0.5).nonzero().squeeze(-1).tolist())
    assert set(wrong) <= flagged
    assert len(flagged) <= len(wrong) + 1
    assert error_of(model, X, f) < 0.1


def test_rows_in_any_order_with_sample_weights_have_the_same_starts():
    X, y, _, _ = make_data(400)
    X, y = X.round(), y.round()
    p = torch.linspace(0.1, 2.0, 400, dtype=torch.float64)
    order = torch.randperm(400, generator=torch.Generator().manual_seed(0))
    one, other = make_model(X, y, sample_weight=p), make_model(X[order], y[order], sample_weight=p[order])
    assert fit_robust(one).starts == pytest.approx(fit_robust(other).starts, rel=1e-6)


@pytest.mark.parametrize("bounds", [(0.1, 2.5), (0.5, 1.5)])
def test_lengthscales_do_not_start_at_a_bound(bounds):
    """Where most constraints have no gradient, and the raw parameter is infinite."""
    X, y, _, _ = make_data(60, 0.35)
    base = gpytorch.kernels.RBFKernel(lengthscale_constraint=gpytorch.constraints.Interval(*bounds))
    base.lengthscale = 1.0
    model = RCGP(X, y, mean="median", kernel=gpytorch.kernels.ScaleKernel(base))
    fit_robust(model)
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())


def test_a_sample_that_cannot_be_computed_leaves_the_ordinary_gp():
    """Or an error that names a row; nothing else."""
    X, y, _, _ = make_data(400)
    X[7], y[7] = 1e160, 100.0
    model = RCGP(X, y, mean="median", kernel=gpytorch.kernels.ScaleKernel(gpytorch.kernels.LinearKernel()))
    with pytest.raises(FitError, match="row 7"):
        fit_robust(model)
