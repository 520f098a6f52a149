from __future__ import annotations

import copy
import pickle

import gpytorch
import numpy as np
import pytest
import torch

import reference
from marks import slow
from rcgp import RCGP, FitError, RobustReport, SparseRCGP
from rcgp.chunked import fit as chunked
from rcgp.chunked import passes, resources
from rcgp.chunked.fit import fit_chunks, robust_model
from rcgp.chunked.passes import Sums
from rcgp.chunked.weighing import _law_wins, draw
from rcgp.chunks import Serial, Threads, chunks_of
from rcgp.core.noise_law import PRIOR_COUNTS, evidence_of_shares
from rcgp.models.defaults import add_weak_priors
from rcgp.models.inducing import choose_inducing
from rcgp.weights import Constant, InverseMultiquadric, NoiseLaw, OneSided, Product, SquaredExponential, WeightFunction
from rcgp.weights.noise_law import responsibilities

N, FEW, M = 260, 70, 15
random = np.random.default_rng(0)
X = random.uniform(-2, 2, (N, 2))
TRUTH = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]
Y = TRUTH + 0.1 * random.standard_normal(N)
OUTLIERS = np.arange(0, N, 11)
Y[OUTLIERS] += random.uniform(2, 6, len(OUTLIERS)) * random.choice([-1, 1], len(OUTLIERS))
NEW = torch.tensor(random.uniform(-2.5, 2.5, (40, 2)))
PRECISION = random.integers(0, 4, N).astype(float)


class Kept:
    """A builder that keeps the model of the sample."""

    def __init__(self, weight=None, mean="median"):
        self.weight, self.mean = weight, mean

    def __call__(self, X, y, precision):
        self.model = robust_model(X, y, precision)
        if self.weight is not None:
            self.model = RCGP(X, y, mean=self.mean, weight=copy.deepcopy(self.weight), sample_weight=precision)
            add_weak_priors(self.model)  # without, outliers end in a kernel matrix that is hardly one
        return self.model


def fitted(y=Y, precision=None, rows=None, engine=None, **options):
    options = {"inducing": M, "fit_rows": FEW, **options}
    return fit_chunks(chunks_of(X, y, precision, rows=rows), engine or Serial(), **options)


@pytest.fixture(scope="module")
def plain():
    """The fit of all rows with default options."""
    return fitted()


def sparse_model(sample, fit, X, y, precision=None):
    """The sparse model of rows in memory at the hyperparameters of a fit."""
    return SparseRCGP(
        X,
        y,
        inducing=fit.process.support,
        kernel=sample.kernel,
        mean=sample.mean,
        weight=Constant(),
        noise=float(fit.noise),
        sample_weight=precision,
    )


class Fixed(WeightFunction):
    """Given weights and slopes."""

    def __init__(self, weight, slope):
        super().__init__()
        self.weight, self.known_slope = weight, slope

    def forward(self, residual, inputs, noise):
        return self.weight

    def slope(self, residual, inputs, noise):
        return self.known_slope


def recursion(sample, fit, y, precision=None):
    """The expectation steps by models that hold all rows: the dense twin of the passes."""
    used = torch.ones(N, dtype=torch.bool) if precision is None else torch.tensor(precision) > 0
    few = sparse_model(sample, fit, sample.train_X, sample.train_y, sample.sample_weight)
    few.weight = sample.weight
    factors = None if precision is None else torch.tensor(precision)[used]
    model = sparse_model(sample, fit, torch.tensor(X)[used], torch.tensor(y)[used], factors)
    with torch.no_grad():
        ones = torch.ones_like(model.train_y)
        h = ones if sample.local_noise is None else sample.local_noise(model.train_X)
        row_noise = model.noise * h / (1.0 if factors is None else factors)
        predicted = few.posterior(model.train_X)
        mean, variance, law = predicted.mean - model.mean(model.train_X), predicted.variance, sample.noise_law
        for _ in range(3):
            log_shares, width = law.log_shares(mean).unsqueeze(0), mean.new_tensor([law.width])
            rows = responsibilities(model.residual(), mean, variance, row_noise, log_shares, width)
            model.weight = Fixed((rows.precision / h).sqrt(), h * rows.slope)
            mean, variance = model.latent_leave_one_out(model.training_terms().pseudo)
            found = rows.share.sum(dim=0)
            counts = torch.tensor(PRIOR_COUNTS) + torch.stack([found[0], found[1:-1].sum(), found[-1]])
            law = NoiseLaw.of_counts(counts, law.width)
        std = (variance + row_noise * law.variance).sqrt()
        final = responsibilities(model.residual(), mean, variance, row_noise, law.log_shares(mean).unsqueeze(0), width)
    return model, used, law, mean + model.mean(model.train_X), std, final.share[:, -2:].sum(dim=-1)


def assert_same_process(fit, posterior, tolerance=1e-10):
    np.testing.assert_allclose(fit.process.mean(NEW), posterior.mean.detach(), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(fit.process.variance(NEW), posterior.variance.detach(), rtol=tolerance, atol=tolerance)


# Against models that hold all rows ------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", [None, PRECISION], ids=["plain", "sample weights"])
def test_the_passes_are_the_expectation_steps_of_a_dense_model(precision, monkeypatch):
    monkeypatch.setattr(passes, "block_rows", lambda m: 23)
    build = Kept()
    fit = fitted(precision=precision, rows=50, build=build)
    model, used, law, mean, std, probability = recursion(build.model, fit, Y, precision)
    assert not law.is_normal
    assert_same_process(fit, model.posterior(NEW), 1e-8)
    diagnosis = fit.diagnose(next(iter(chunks_of(X, Y, precision))))
    np.testing.assert_allclose(diagnosis.weights[used], model.weights(), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(diagnosis.mean[used], mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(diagnosis.std[used], std, rtol=1e-7)
    np.testing.assert_allclose(diagnosis.probability[used], probability, rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(fit.noise_law.shares, law.shares, rtol=1e-7)
    assert fit.rows == int(used.sum())
    if precision is not None:  # rows of zero weight are predicted from all other rows
        left_out = torch.tensor(X)[~used]
        np.testing.assert_allclose(diagnosis.mean[~used], fit.predictor.mean(left_out), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(diagnosis.std[~used], fit.predictor.noisy_std(left_out), rtol=1e-9)


def test_local_noise_affects_weights_and_predictions():
    noise = np.where(X[:, 0] > 0, 0.5, 0.02)
    build, y = Kept(), TRUTH + noise * np.random.default_rng(3).standard_normal(N)
    fit = fitted(y, build=build, inducing=40, fit_rows=N)
    assert build.model.local_noise is not None
    model, _, _, _, std, _ = recursion(build.model, fit, y)
    assert_same_process(fit, model.posterior(NEW), 1e-8)
    diagnosis = fit.diagnose(next(iter(chunks_of(X, y))))
    np.testing.assert_allclose(diagnosis.std, std, rtol=1e-7)
    found = fit.predictor.noise_std(torch.tensor(X))
    assert float(found[X[:, 0] > 1].mean()) > 1.4 * float(found[X[:, 0] < -1].mean())
    assert fitted(y, inducing=40, fit_rows=N, local_noise=False).diagnose.prior.local_noise is None


def test_clean_rows_have_normal_noise_and_full_weight():
    clean = TRUTH + 0.1 * np.random.default_rng(1).standard_normal(N)
    build = Kept()
    fit = fitted(clean, build=build)
    assert fit.noise_law.is_normal
    plain = fitted(clean, build=Kept(Constant()), learned=False)
    torch.testing.assert_close(fit.process.mean(NEW), plain.process.mean(NEW), rtol=1e-10, atol=1e-10)
    diagnosis = fit.diagnose(next(iter(chunks_of(X, clean))))
    assert bool((diagnosis.weights == 1.0).all())
    assert bool((diagnosis.probability == 0.0).all())


@pytest.mark.parametrize("value", [30.0, 1e300])
def test_an_outlier_that_a_clean_sample_does_not_show_is_found(value):
    y = TRUTH + 0.1 * np.random.default_rng(1).standard_normal(N)
    clean = fitted(y)
    numbers = draw(chunks_of(X, y), Serial(), (FEW, N), seed=0)[0].numbers.tolist()
    rows = [i for i in range(N) if i not in numbers][:3]
    y[rows] = value
    fit = fitted(y)
    assert fit.report.law.is_normal
    assert not fit.noise_law.is_normal
    probability = fit.diagnose(next(iter(chunks_of(X, y)))).probability
    assert bool((probability[rows] > 0.99).all())
    assert int((probability > 0.5).sum()) == 3
    np.testing.assert_allclose(fit.process.mean(NEW), clean.process.mean(NEW), atol=0.1)


def test_a_law_that_flags_rows_competes_under_the_same_prior_of_shares():
    counts = torch.tensor([240.0, 18.0, 2.0], dtype=torch.float64)
    shares = evidence_of_shares(counts)
    all_normal = evidence_of_shares(torch.tensor([260.0, 0.0, 0.0], dtype=torch.float64))
    for margin, flagged, wins in ((1.0, 0, True), (-1.0, 0, False), (-1.0, 1, True), (float(all_normal) - 1, 1, False)):
        assert _law_wins(Sums(None, counts, margin - shares, torch.tensor(flagged))) is wins


@pytest.mark.parametrize("precision", [None, PRECISION], ids=["plain", "sample weights"])
@pytest.mark.parametrize(
    "weight",
    [
        Constant(),
        InverseMultiquadric(),
        SquaredExponential(trainable=True),
        Product(OneSided(InverseMultiquadric(epsilon=0.1), "above"), SquaredExponential(epsilon=0.02)),
    ],
    ids=lambda weight: type(weight).__name__,
)
def test_given_weights_are_those_of_the_dense_model(weight, precision):
    build = Kept(weight)
    fit = fitted(precision=precision, rows=64, build=build, learned=False)
    used = torch.ones(N, dtype=torch.bool) if precision is None else torch.tensor(precision) > 0
    factors = None if precision is None else torch.tensor(precision)[used]
    model = sparse_model(build.model, fit, torch.tensor(X)[used], torch.tensor(Y)[used], factors)
    # A fitted threshold is the sample's, one by the rule that of all rows.
    model.weight = build.model.weight if isinstance(weight, SquaredExponential) else copy.deepcopy(weight)
    assert_same_process(fit, model.posterior(NEW))
    diagnosis = fit.diagnose(next(iter(chunks_of(X, Y, precision))))
    np.testing.assert_allclose(diagnosis.weights[used], model.weights(), rtol=1e-10)
    np.testing.assert_allclose(diagnosis.mean[used], model.leave_one_out().mean, rtol=1e-10, atol=1e-10)


def test_a_constant_weight_is_gpytorchs_sgpr():
    build = Kept(Constant())
    fit = fitted(build=build, learned=False, rows=31)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = fit.noise

    class SGPR(gpytorch.models.ExactGP):
        def __init__(self):
            super().__init__(torch.tensor(X), torch.tensor(Y) - build.model.mean(torch.tensor(X)), likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.InducingPointKernel(
                copy.deepcopy(build.model.kernel), inducing_points=fit.process.support.clone(), likelihood=likelihood
            )

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    gp = SGPR().double().eval()
    with (
        torch.no_grad(),
        gpytorch.settings.sgpr_diagonal_correction(False),
        gpytorch.settings.cholesky_jitter(double_value=1e-12),
    ):
        theirs = gp(NEW).mean + build.model.mean(NEW)
    np.testing.assert_allclose(fit.process.mean(NEW), theirs, atol=1e-6)
    lengthscale, variance = (
        value.detach().numpy() for value in (build.model.kernel.base_kernel.lengthscale, build.model.kernel.outputscale)
    )
    Z, m = fit.process.support.numpy(), float(np.median(build.model.train_y))
    K_uu, K_u, K_star = (reference.se_kernel(Z, x, lengthscale, variance) for x in (Z, X, NEW.numpy()))
    mean, var = reference.sparse_predict(
        K_uu,
        K_u,
        K_star,
        np.full(40, variance),
        m,
        Y,
        np.full(N, m),
        *reference.constant(Y - m, 1.0, float(fit.noise)),
        float(fit.noise),
    )
    np.testing.assert_allclose(fit.process.mean(NEW), mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(fit.process.variance(NEW), var, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("residual", [0.0, 1.0], ids=["all on the mean", "most on the mean"])
def test_threshold_follows_the_rule_if_most_rows_lie_on_the_mean(residual):
    y = np.zeros(N)
    y[5] = residual
    build = Kept(InverseMultiquadric(), mean="zero")
    fit = fitted(y, build=build, learned=False, rows=100, max_iterations=1)
    rule = InverseMultiquadric().threshold(torch.tensor(y))
    assert fit.diagnose.rule.weight.threshold(torch.zeros(1)).item() == pytest.approx(rule.item(), rel=1e-12)


# Pieces and engines ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[True, False], ids=["learned", "given"])
def in_one_piece(request):
    """A fit to rows in one chunk, and its options; a search of any length shows a difference between chunks."""
    options = {"precision": PRECISION, "max_iterations": 10}
    if not request.param:
        options |= {"build": Kept(InverseMultiquadric()), "learned": False}
    return fitted(**options), options


@pytest.mark.parametrize("rows", [slow(1), 37, 259])
def test_the_result_does_not_depend_on_the_chunks(in_one_piece, rows):
    whole, options = in_one_piece
    pieces = fitted(rows=rows, engine=Threads(2) if rows == 37 else Serial(), **options)
    np.testing.assert_array_equal(pieces.process.support, whole.process.support)
    np.testing.assert_allclose(pieces.process.mean(NEW), whole.process.mean(NEW), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(pieces.process.variance(NEW), whole.process.variance(NEW), rtol=1e-10, atol=1e-10)
    assert pieces.report.hyperparameters == whole.report.hyperparameters


@pytest.mark.parametrize("precision", [None, PRECISION], ids=["plain", "sample weights"])
def test_the_sample_depends_on_the_seed_and_not_on_the_chunks(precision):
    few, some, rows = draw(chunks_of(X, Y, precision), Serial(), (20, 90), seed=3)
    assert rows == N if precision is None else rows == int((PRECISION > 0).sum())
    for size in (1, 13, 300):
        again = draw(chunks_of(X, Y, precision, rows=size), Serial(), (20, 90), seed=3)
        assert torch.equal(again[0].X, few.X)
        assert torch.equal(again[1].y, some.y)
    np.testing.assert_array_equal(X[few.numbers], few.X)
    assert len(set(some.numbers.tolist())) == 90
    assert set(few.numbers.tolist()) < set(some.numbers.tolist())
    assert len(few.y) == 20
    if precision is not None:
        np.testing.assert_array_equal(PRECISION[some.numbers], some.precision)
        assert bool((some.precision > 0).all())
    other = draw(chunks_of(X, Y, precision), Serial(), (20, 90), seed=4)[0]
    assert not torch.equal(other.numbers, few.numbers)


def test_samples_cover_all_rows_evenly():
    chosen = np.zeros(N)
    for seed in range(200):
        chosen[draw(chunks_of(X, Y, rows=50), Serial(), (N // 2, N // 2), seed)[0].numbers] += 1
    assert abs(chosen / 200 - 0.5).max() < 0.16  # 4.5 standard deviations


def test_tasks_and_results_can_be_pickled(plain):
    again = pickle.loads(pickle.dumps(plain))
    assert torch.equal(again.process.mean(NEW), plain.process.mean(NEW))
    chunk = next(iter(chunks_of(X, Y)))
    assert torch.equal(again.diagnose(chunk).weights, plain.diagnose(chunk).weights)


# What it is for -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def well_fitted():
    """A fit with enough rows and points for the function."""
    return fitted(fit_rows=120, inducing=60)


def test_outliers_do_not_matter_and_are_found(well_fitted):
    fit = well_fitted
    assert isinstance(fit.report, RobustReport)
    error = np.abs(fit.process.mean(torch.tensor(X)).numpy() - TRUTH).mean()
    assert error < 0.05
    diagnosis = fit.diagnose(next(iter(chunks_of(X, Y))))
    np.testing.assert_array_equal(np.flatnonzero(diagnosis.probability > 0.5), OUTLIERS)
    assert float(diagnosis.weights[OUTLIERS].max()) < 0.1
    assert float(diagnosis.weights.median()) > 0.95
    assert fit.noise_law.outlier_share == pytest.approx(len(OUTLIERS) / N, abs=0.02)


@pytest.mark.parametrize("inside", [True, False], ids=["in the sample", "not in the sample"])
def test_the_influence_of_an_observation_is_bounded(plain, inside):
    numbers = draw(chunks_of(X, Y), Serial(), (FEW, N), seed=0)[0].numbers.tolist()
    row = next(i for i in range(1, N) if (i in numbers) == inside and i not in OUTLIERS)
    means = [plain.process.mean(NEW).numpy()]
    for value in (1e4, 1e300):
        y = Y.copy()
        y[row] = value
        fit = fitted(y, rows=100)
        means.append(fit.process.mean(NEW).numpy())
        assert fit.diagnose(next(iter(chunks_of(X, y)))).weights[row] < 1e-10
    assert np.abs(means[1] - means[0]).max() < 0.2
    np.testing.assert_allclose(means[2], means[1], atol=1e-4)


def test_a_row_of_the_sample_is_not_predicted_from_itself(plain):
    """An isolated outlier in the sample, far from all other rows."""
    numbers = draw(chunks_of(X, Y), Serial(), (FEW, N), seed=0)[0].numbers.tolist()
    rows = [row for row in OUTLIERS if row in numbers]
    assert rows
    assert float(plain.diagnose(next(iter(chunks_of(X, Y)))).weights[rows].max()) < 0.1


# Choices --------------------------------------------------------------------------------------------------------------


def test_inducing_points_are_chosen_by_the_fitted_kernel_or_given():
    build, short = Kept(), {"seed": 2, "max_iterations": 3}
    fit = fitted(build=build, **short)
    expected = choose_inducing(build.model.kernel, torch.tensor(X), M, "greedy", 2)
    assert torch.equal(fit.process.support, expected)
    assert not torch.equal(fitted(selection="kmeans", **short).process.support, expected)
    Z = torch.tensor(X[:9])
    assert torch.equal(fitted(inducing=Z, **short).process.support, Z)
    with pytest.raises(ValueError, match="inducing must be at least 1"):
        fitted(inducing=0)
    for inducing in (M, Z):
        with pytest.raises(ValueError, match="selection must be one of"):
            fitted(selection="random", inducing=inducing)


def test_polishing_improves_the_evidence_of_all_rows():
    first, second = Kept(), Kept()
    before, after = fitted(build=first, inducing=40), fitted(build=second, inducing=40, polish=15)
    assert before.polished is None
    assert after.polished.iterations <= 15
    assert after.fitted_rows == N > before.fitted_rows
    assert torch.equal(before.process.support, after.process.support)
    errors = [np.abs(fit.process.mean(torch.tensor(X)).numpy() - TRUTH).mean() for fit in (before, after)]
    assert errors[1] < errors[0]
    assert after.report.hyperparameters["noise"] == [float(after.noise)] != before.report.hyperparameters["noise"]
    assert_same_process(after, recursion(second.model, after, Y)[0].posterior(NEW), 1e-8)
    assert {"polish"} == set(after.seconds) - set(before.seconds)


def test_priors_of_the_noise_count_in_polishing():
    class Sure(Kept):
        def __call__(self, X, y, precision):
            model = super().__call__(X, y, precision)
            model.register_prior("noise_prior", gpytorch.priors.NormalPrior(0.3, 1e-4), "noise")
            return model

    after = fitted(build=Sure(InverseMultiquadric()), learned=False, polish=5)
    assert float(after.noise) == pytest.approx(0.3, rel=0.01)


def test_polishing_uses_the_papers_objective_for_given_weights():
    first, second = Kept(InverseMultiquadric()), Kept(InverseMultiquadric())
    before = fitted(build=first, learned=False, inducing=40)
    after = fitted(build=second, learned=False, inducing=40, polish=15)
    assert after.polished.objective == "loo"
    values = []
    for build, fit in ((first, before), (second, after)):
        model = sparse_model(build.model, fit, torch.tensor(X), torch.tensor(Y))
        model.weight = build.model.weight
        loo = model.leave_one_out()
        values.append(float(torch.distributions.Normal(loo.mean, loo.variance.sqrt()).log_prob(model.train_y).sum()))
    assert values[1] > values[0]


def test_errors_number_the_row_among_all_rows():
    class Broken(Kept):
        def __call__(self, X, y, precision):
            model = super().__call__(X, y, precision)
            model.register_prior("never", gpytorch.priors.UniformPrior(5.0, 6.0), lambda module: torch.tensor(0.0))
            return model

    with pytest.raises(FitError) as caught:
        fitted(build=Broken(InverseMultiquadric()), learned=False, rows=20)
    numbers = draw(chunks_of(X, Y), Serial(), (FEW, N), seed=0)[0].numbers
    distance = np.abs(Y[numbers] - np.median(Y[numbers]))
    assert caught.value.row == int(numbers[distance.argmax()])


def test_errors_of_polishing_number_the_row_among_all_rows(monkeypatch):
    def fails(model, objective, **options):
        if isinstance(model, SparseRCGP):
            raise FitError("no way", row=17)
        return fit_to_rows(model, objective, **options)

    fit_to_rows = chunked.fit
    monkeypatch.setattr(chunked, "fit", fails)
    with pytest.raises(FitError) as caught:
        fitted(build=Kept(InverseMultiquadric()), learned=False, precision=PRECISION, rows=20, polish=3)
    assert caught.value.row == int(np.flatnonzero(PRECISION)[17]) != 17


def test_calibration_of_intervals_does_not_depend_on_outliers(well_fitted):
    rest, fit = np.setdiff1d(np.arange(N), OUTLIERS), well_fitted
    found = fit.diagnose(next(iter(chunks_of(X, Y))))
    score = np.abs((Y - found.mean.numpy()) / (found.variance + found.row_noise).sqrt().numpy())
    assert fit.trusted_spread == pytest.approx(np.median(score[rest]) / 0.6744897501960817, rel=0.1)
    assert fit.trusted_spread == pytest.approx(1.0, abs=0.2)
    assert fit.unseen < 0.05
    assert fit.doubts == ()


def test_the_unseen_share_is_that_of_a_dense_model():
    build = Kept()
    fit = fitted(inducing=4, build=build)
    Z, every = fit.process.support, torch.tensor(X)
    with torch.no_grad():
        K = build.model.kernel(Z, every).to_dense()
        q = (K * torch.linalg.solve(build.model.kernel(Z).to_dense(), K)).sum(0)
        unseen = build.model.kernel(every, diag=True) - q
    std = fit.diagnose(next(iter(chunks_of(X, Y)))).std
    assert fit.unseen == pytest.approx(float((unseen / std.square()).median()), rel=1e-6)
    assert fit.unseen > 0.1


def test_inducing_points_beyond_free_memory_raise(monkeypatch):
    monkeypatch.setattr(resources, "available_memory", lambda: 10_000)
    with pytest.raises(MemoryError, match=r"15 inducing points need about 0.0 GB of memory, and 0.0 are free"):
        fitted()
    monkeypatch.setattr(resources, "available_memory", lambda: 40_000)
    assert len(fitted(max_iterations=3).process.support) == M


def test_only_rows_of_zero_weight_raise():
    with pytest.raises(ValueError, match="sample_weight is zero in every row"):
        fitted(precision=np.zeros(N))


def test_every_step_is_timed(plain):
    assert list(plain.seconds) == ["sample", "hyperparameters", "inducing points", "all rows"]
