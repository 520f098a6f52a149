"""The space-time model against its dense twin: RCGP on the cells with the same kernel."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gpytorch
import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from rcgp import RCGP, SpaceTimeRCGP, StateSpaceRCGP, fit, fit_robust, posterior_influence
from rcgp.training.judgement import judge_rows
from rcgp.weights import InverseMultiquadric

TIMES, SITES = 25, 3


class Exponential(gpytorch.kernels.MaternKernel):
    """Matérn-½ from plain differences: GPyTorch's distances come from squares and are wrong by 1e-8 at equal times."""

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        distance = (x1 - x2 if diag else x1.unsqueeze(-2) - x2.unsqueeze(-3)).abs().sum(dim=-1)
        return (-distance / self.lengthscale.squeeze()).exp()


def time_kernel(name: str) -> gpytorch.kernels.Kernel:
    kernels = gpytorch.kernels
    kernel = kernels.ScaleKernel(kernels.MaternKernel(nu=1.5 if name == "matern-3/2" else 0.5)).double()
    kernel.base_kernel.lengthscale, kernel.outputscale = 1.7, 1.3
    if name == "matern-1/2 + trend":
        trend = kernels.LinearKernel().double()
        trend.variance = 0.05
        return kernel + trend
    return kernel


def field(missing: Tensor | None = None, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Unsorted times, one of them twice, sites in a plane, and values with an outlier."""
    random = torch.Generator().manual_seed(seed)
    times = 10.0 * torch.rand(TIMES, generator=random, dtype=torch.float64)
    times[3] = times[7]
    sites = 2.0 * torch.rand(SITES, 2, generator=random, dtype=torch.float64)
    Y = torch.sin(times).unsqueeze(-1) + sites[:, 0] + 0.3 * torch.randn(TIMES, SITES, generator=random).double()
    Y[5, 1] = 30.0
    if missing is None:
        missing = torch.rand(TIMES, SITES, generator=random) < 0.2
    Y[missing] = torch.nan
    return times, sites, Y


def build(name: str = "matern-3/2", missing: Tensor | None = None, **options: Any) -> SpaceTimeRCGP:
    data = field(missing)
    return SpaceTimeRCGP(*data, time_kernel=time_kernel(name), weight=InverseMultiquadric(), noise=0.09, **options)


def dense(model: SpaceTimeRCGP) -> RCGP:
    kernel = copy.deepcopy(model.kernel)
    for part in kernel.modules():
        if isinstance(part, gpytorch.kernels.MaternKernel) and part.nu == 0.5:
            part.__class__ = Exponential
    return RCGP(
        model.train_X,
        model.train_y,
        kernel=kernel,
        mean="median",
        weight=copy.deepcopy(model.weight),
        noise=float(model.noise.detach()),
        sample_weight=model.sample_weight,
    )


def pairs(times: Tensor, sites: Tensor) -> Tensor:
    """All pairs as rows (t, x)."""
    return torch.stack([torch.cat([t.reshape(1), x]) for t in times for x in sites])


def check_equal(model: SpaceTimeRCGP, twin: RCGP) -> None:
    """Posterior at old and new times and sites, leave-one-out, evidence and its gradient."""
    for mine, theirs in zip(model.leave_one_out(), twin.leave_one_out(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-8)
    new_times = torch.tensor([-3.0, 0.4, float(model.train_X[0, 0]), 5.5, 14.0], dtype=torch.float64)
    new_sites = torch.tensor([[0.3, 0.4], [1.9, -5.0], model.sites[1].tolist()], dtype=torch.float64)
    for sites, noise in (None, False), (new_sites, False), (new_sites, True):
        mine = model.posterior(new_times, sites, observation_noise=noise)
        theirs = twin.posterior(pairs(new_times, model.sites if sites is None else sites), observation_noise=noise)
        assert mine.mean.shape == mine.variance.shape == (5, 3)
        torch.testing.assert_close(mine.mean.reshape(-1), theirs.mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(mine.variance.reshape(-1), theirs.variance, rtol=1e-8, atol=1e-8)
    values, gradients = [], []
    for each in (model, twin):
        value = each.signal_evidence(each.training_terms().pseudo)
        gradients.append(torch.autograd.grad(value, list(each.parameters())))
        values.append(value.detach())
    torch.testing.assert_close(*values, rtol=1e-8, atol=1e-8)
    assert len(gradients[0]) == len(gradients[1])
    for mine, theirs in zip(*gradients, strict=True):
        assert bool((mine != 0).all())
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["matern-3/2", "matern-1/2 + trend"])
def test_equals_the_dense_model(name: str) -> None:
    weights = 0.5 + torch.rand(TIMES, SITES, generator=torch.Generator().manual_seed(1)).double()
    model = build(name, sample_weight=weights)
    torch.testing.assert_close(model.weights(), dense(model).weights())
    check_equal(model, dense(model))


def test_the_space_kernel_may_be_any_on_some_of_the_columns() -> None:
    kernels = gpytorch.kernels
    smooth = kernels.ScaleKernel(kernels.RBFKernel(active_dims=[1])) + kernels.MaternKernel(nu=2.5, active_dims=[0])
    model = build(space_kernel=smooth.double())
    check_equal(model, dense(model))
    scaled = kernels.ScaleKernel(kernels.RQKernel(active_dims=[1])).double()
    model = build(space_kernel=scaled)
    check_equal(model, dense(model))


def patterns() -> dict[str, Tensor]:
    nothing = torch.zeros(TIMES, SITES, dtype=torch.bool)
    site, time, one, half = (nothing.clone() for _ in range(4))
    site[:, 1] = True
    time[4:9] = True
    one[:] = True
    one[11, 2] = False
    half[torch.rand(TIMES, SITES, generator=torch.Generator().manual_seed(2)) < 0.5] = True
    return {"nothing": nothing, "a site": site, "times": time, "all but one": one, "half": half}


@pytest.mark.parametrize("pattern", patterns())
def test_cells_are_missing_at_will(pattern: str) -> None:
    missing = patterns()[pattern]
    model = build(missing=missing)
    twin = dense(model)
    assert model.train_y.shape == (int((~missing).sum()),)
    for mine, theirs in zip(model.leave_one_out(), twin.leave_one_out(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-8)
    times = torch.linspace(0.0, 10.0, 6, dtype=torch.float64)
    mine, theirs = model.posterior(times), twin.posterior(pairs(times, model.sites))
    torch.testing.assert_close(mine.mean.reshape(-1), theirs.mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(mine.variance.reshape(-1), theirs.variance, rtol=1e-8, atol=1e-8)


def test_one_site_is_a_series() -> None:
    times, _, Y = field()
    series = StateSpaceRCGP(times, Y[:, 1], kernel=time_kernel("matern-3/2"), weight=InverseMultiquadric())
    model = SpaceTimeRCGP(
        times, [[4.0, 2.0]], Y[:, 1:2], time_kernel=time_kernel("matern-3/2"), weight=InverseMultiquadric()
    )
    for mine, theirs in zip(model.leave_one_out(), series.leave_one_out(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)
    new = torch.linspace(-1.0, 12.0, 7, dtype=torch.float64)
    mine, theirs = model.posterior(new), series.posterior(new)
    torch.testing.assert_close(mine.mean.squeeze(-1), theirs.mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(mine.variance.squeeze(-1), theirs.variance, rtol=1e-10, atol=1e-10)
    values = [each.signal_evidence(each.training_terms().pseudo).detach() for each in (model, series)]
    torch.testing.assert_close(*values, rtol=1e-10, atol=1e-10)


def test_the_order_of_times_and_sites_does_not_matter() -> None:
    times, sites, Y = field()
    rows, columns = torch.randperm(TIMES, generator=torch.Generator().manual_seed(3)), torch.tensor([2, 0, 1])
    first = SpaceTimeRCGP(times, sites, Y)
    second = SpaceTimeRCGP(times[rows], sites[columns], Y[rows][:, columns])
    for report in map(fit_robust, (first, second)):
        assert report.converged
    for left, right in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-4)
    for what in ("weights", "outlier_probability"):
        left, right = first.cells(getattr(first, what)()), second.cells(getattr(second, what)())
        torch.testing.assert_close(left[rows][:, columns], right, rtol=1e-4, atol=1e-4, equal_nan=True)
    left, right = first.posterior(times).mean, second.posterior(times).mean
    torch.testing.assert_close(left[:, columns], right, rtol=1e-4, atol=1e-4)


def high_precision_evidence(model: SpaceTimeRCGP, stretch: Any = 1) -> Any:
    """ℓ with fifty digits, for Matérn-3/2 kernels in time and space, the lengthscales of the latter times a number."""
    with mpmath.workdps(50):
        number = np.vectorize(lambda value: mpmath.mpf(float(value)), otypes=[object])
        pseudo = model.training_terms().pseudo
        X, z, s = (number(part.detach().numpy()) for part in (model.train_X, pseudo.target, pseudo.root_precision))
        scale, in_time, in_space = (
            number(part.detach().numpy())
            for part in (
                model.time_kernel.outputscale,
                model.time_kernel.base_kernel.lengthscale.squeeze(),
                model.space_kernel.lengthscale.squeeze(),
            )
        )
        root = np.vectorize(mpmath.sqrt, otypes=[object])
        gaps = abs(X[:, None, 0] - X[:, 0]) / in_time
        distances = root((((X[:, None, 1:] - X[:, 1:]) / (in_space * stretch)) ** 2).sum(axis=-1))
        K = scale
        for part in (gaps, distances):
            x = mpmath.sqrt(3) * part
            K = K * (1 + x) * np.vectorize(mpmath.exp, otypes=[object])(-x)
        L = mpmath.cholesky(mpmath.matrix((K * s[:, None] * s + np.eye(len(z), dtype=object)).tolist()))
        v: list[Any] = []
        for i in range(len(z)):
            v.append((s[i] * z[i] - sum(L[i, k] * v[k] for k in range(i))) / L[i, i])
        return -sum(mpmath.log(L[i, i]) + v[i] ** 2 / 2 for i in range(len(z)))


@pytest.mark.parametrize("apart", [1e-3, 1.0])
def test_hardly_any_noise_and_sites_that_nearly_coincide(apart: float) -> None:
    # The dense model has lost up to eleven digits here.
    times, sites, Y = field()
    sites[1] = sites[0] + apart
    model = SpaceTimeRCGP(times[:8], sites, Y[:8], time_kernel=time_kernel("matern-3/2"), noise=1e-10)
    value = float(model.signal_evidence(model.training_terms().pseudo).detach())
    assert value == pytest.approx(float(high_precision_evidence(model)), rel=1e-8)


def test_gradient_in_space_with_hardly_any_noise() -> None:
    times, sites, Y = field()
    model = SpaceTimeRCGP(times[:8], sites, Y[:8], time_kernel=time_kernel("matern-3/2"), noise=1e-7)
    value = model.signal_evidence(model.training_terms().pseudo)
    (gradient,) = torch.autograd.grad(value, model.space_kernel.raw_lengthscale)  # by the logarithm
    with mpmath.workdps(50):
        step = mpmath.mpf(10) ** -15
        rise = high_precision_evidence(model, 1 + step) - high_precision_evidence(model, 1 - step)
        expected = float(rise / (2 * step))
    assert float(gradient.sum()) == pytest.approx(expected, rel=1e-8)


def generated(times: int, seed: int, bad: float = 0.05) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """A field of the model itself: times, sites, observations, truth, and which cells are bad."""
    random = np.random.default_rng(seed)
    t, x = np.sort(random.uniform(0.0, times, times)), random.uniform(0.0, 10.0, (SITES, 2))
    noise, signs = 0.1 * random.standard_normal((times, SITES)), random.choice([-1.0, 1.0], (times, SITES))
    waves = random.standard_normal((SITES, SITES))
    # Smooth in time, and alike at all sites but for a part of their own.
    f = np.sin(t / 8.0)[:, None] + 0.5 * np.sin(t[:, None] / 11.0 + waves[0]) * waves[1]
    wrong = random.random((times, SITES)) < bad
    Y = f + noise + wrong * signs * random.uniform(1.0, 6.0, (times, SITES))
    Y[random.random((times, SITES)) < 0.1] = np.nan
    tensors = (torch.from_numpy(part) for part in (t, x, Y, f, wrong & ~np.isnan(Y)))
    return tuple(tensors)  # type: ignore[return-value]


# More than 4096 cells: starts are tried on stretches of time.
@pytest.mark.parametrize(("times", "bad"), [(120, 0.05), (120, 0.25), (1600, 0.1)])
def test_a_robust_fit_finds_bad_cells_and_keeps_their_neighbours(times: int, bad: float) -> None:
    t, x, Y, f, wrong = generated(times, seed=times, bad=bad)
    model = SpaceTimeRCGP(t, x, Y)
    report = fit_robust(model)
    flagged = model.cells(model.outlier_probability()) > 0.5
    assert float((flagged & wrong).sum() / flagged.sum()) >= 0.97
    assert float((flagged & wrong).sum() / wrong.sum()) >= 0.97
    good, weights = ~wrong & model.observed, model.cells(model.weights())
    beside = good & wrong.any(dim=1, keepdim=True)
    beside[1:] |= good[1:] & wrong[:-1]
    beside[:-1] |= good[:-1] & wrong[1:]
    assert float(weights[beside].mean()) >= 0.95
    assert float((weights[beside] < 0.5).double().mean()) <= 0.02
    assert float((model.posterior(t).mean - f).square().mean().sqrt()) <= 0.1
    assert float(model.noise.detach() ** 0.5) == pytest.approx(0.1, rel=0.2)
    assert report.evidence > report.normal_evidence
    assert judge_rows(model, learn=False).doubts == ()


def test_a_robust_fit_is_that_of_the_dense_model() -> None:
    t, x, Y, _, _ = generated(100, seed=4)
    model = SpaceTimeRCGP(t, x, Y)
    twin = dense(model)
    mine, theirs = fit_robust(model), fit_robust(twin, local_noise=False)
    # The starts differ, and a fit ends where a step gains less than 0.01 nats for each row.
    assert mine.evidence == pytest.approx(theirs.evidence, abs=0.2)
    torch.testing.assert_close(model.weights(), twin.weights(), rtol=0.02, atol=0.02)


def test_sites_far_apart_are_fitted_as_such() -> None:
    random = np.random.default_rng(0)
    t = np.arange(200.0)
    Y = np.stack([np.sin(t / 7.0 + phase) for phase in (0.0, 1.5, 3.0)], axis=1) + 0.1 * random.standard_normal(
        (200, 3)
    )
    model = SpaceTimeRCGP(t, [[0.0], [1.0], [2.0]], Y)
    fit(model, "marginal")
    residual = model.cells(model.leave_one_out().mean) - torch.from_numpy(Y)
    assert float(residual.square().mean().sqrt()) < 0.13


# Times before, among and after those of the model, one of them twice; a new site, one beside it, and an old one.
@pytest.mark.parametrize(("name", "new"), [("matern-3/2", False), ("matern-1/2 + trend", True)])
def test_samples_have_the_mean_and_covariance_of_the_dense_posterior(name: str, new: bool) -> None:
    model, count = build(name), 400
    times = torch.tensor([4.0, -1.0, 11.0, 4.0], dtype=torch.float64)
    sites = torch.cat([torch.tensor([[0.3, 1.9], [0.4, 1.9]]).double(), model.sites[:1]]) if new else None
    drawn = model.sample(times, sites, count, seed=1)
    assert drawn.shape == (count, 4, SITES)
    posterior = dense(model).posterior(pairs(times, model.sites if sites is None else sites))
    flat = drawn.flatten(1)
    mean, covariance = posterior.mean.detach(), posterior.covariance_matrix.detach()
    deviation = covariance.diagonal().sqrt()
    assert float(((flat.mean(dim=0) - mean) / deviation).abs().max()) < 5.0 / count**0.5
    scale = deviation.unsqueeze(-1) * deviation
    assert float(((torch.cov(flat.T) - covariance) / scale).abs().max()) < 7.0 / count**0.5
    torch.testing.assert_close(drawn[:, 0], drawn[:, 3], rtol=0.0, atol=1e-6)


def test_a_seed_repeats_samples() -> None:
    model, times = build(), [0.0, 2.0]
    assert torch.equal(model.sample(times, samples=2, seed=3), model.sample(times, samples=2, seed=3))
    assert not torch.equal(model.sample(times, seed=3), model.sample(times, seed=4))


def test_influence_of_a_cell_is_bounded() -> None:
    model = build()
    divergences = posterior_influence(model, 4, [10.0, 1e3, 1e8, torch.inf])
    torch.testing.assert_close(divergences, posterior_influence(dense(model), 4, [10.0, 1e3, 1e8, torch.inf]))
    assert float(divergences.max()) < 100.0


def test_parameters_are_the_given_ones_and_registered_once() -> None:
    times, sites, Y = field()
    in_time, in_space = time_kernel("matern-3/2"), gpytorch.kernels.MaternKernel(nu=1.5)
    model = SpaceTimeRCGP(times, sites, Y, time_kernel=in_time, space_kernel=in_space)
    assert len(list(model.parameters())) == 4
    before = model.posterior(times).mean
    in_space.lengthscale = 0.01
    assert float(model.space_kernel.lengthscale.detach()) == pytest.approx(0.01)
    assert float((model.posterior(times).mean - before).abs().max()) > 1e-3
    assert in_time.active_dims is None
    assert in_space.active_dims is None
    in_space(sites).to_dense()  # as before


def test_copies_pickles_and_single_precision() -> None:
    model = build()
    times = torch.linspace(0.0, 10.0, 4, dtype=torch.float64)
    answer = model.posterior(times)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other.posterior(times).mean, answer.mean)
    single = SpaceTimeRCGP(*(part.float() for part in field()), time_kernel=time_kernel("matern-3/2"))
    assert single.posterior(times).mean.dtype == single.leave_one_out().mean.dtype == torch.float32
    fit_robust(single)
    assert single.train_y.dtype == single.sites.dtype == torch.float32


def test_cells_arranges_rows_like_the_observations() -> None:
    _, _, Y = field()
    model = build()
    torch.testing.assert_close(model.cells(model.train_y), Y, equal_nan=True, rtol=0.0, atol=0.0)
    flags = model.cells(model.train_y > 1.0)
    torch.testing.assert_close(flags, (Y > 1.0).double().where(model.observed, torch.nan), equal_nan=True)
    with pytest.raises(ValueError, match="one for each observed cell"):
        model.cells(Y)


def test_neighbours_are_cells_of_the_same_site() -> None:
    Y = torch.tensor([[0.0, 1.0], [torch.nan, 2.0], [3.0, torch.nan], [4.0, torch.nan]])
    model = SpaceTimeRCGP([0.0, 1.0, 2.0, 5.0], [0.0, 1.0], Y.double())
    # Rows: (0, site 0), (0, site 1), (1, site 1), (2, site 0), (5, site 0).
    assert model.nearest_rows().tolist() == [3, 2, 1, 0, 3]
    Y[1, 1] = torch.nan
    alone = SpaceTimeRCGP([0.0, 1.0, 2.0, 5.0], [0.0, 1.0], Y.double())
    assert alone.nearest_rows().tolist() == [2, 0, 0, 2]


def test_starts_are_tried_on_all_cells_of_stretches_of_time() -> None:
    Y = np.random.default_rng(0).standard_normal((3000, SITES))
    Y[::7, 1] = np.nan
    times = np.arange(3000.0) // 2  # each of them twice
    model = SpaceTimeRCGP(times, np.eye(SITES), Y)
    rows = model.start_rows()
    assert rows is not None
    kept = torch.zeros(len(model.train_y), dtype=torch.bool)
    kept[rows] = True
    assert len(rows) == int(kept.sum())
    assert 4096 <= len(rows) <= 4096 + 8 * 2 * SITES
    of_time = model.train_X[:, 0].long()
    assert int(torch.bincount(of_time, kept.double()).ne(0).sum()) == len(torch.unique(of_time[kept]))
    full = torch.bincount(of_time)[of_time[kept].unique()]
    assert int(full.sum()) == len(rows)
    assert build().start_rows() is None


FLAT = torch.zeros(2, 3, dtype=torch.float64)
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "transposed": ({"Y": FLAT.T}, r"Y must have shape T x s = 2 x 3, got \(3, 2\); use Y.T"),
    "a vector": ({"Y": torch.zeros(6)}, "Y must have shape T x s"),
    "no times": ({"times": [], "Y": torch.zeros(0, 3)}, "times must have shape T"),
    "times in a table": ({"times": FLAT}, "times must have shape T"),
    "NaN in times": ({"times": [0.0, float("nan")]}, "times contains NaN in row 1"),
    "NaN in sites": ({"sites": [0.0, 1.0, float("nan")]}, "sites contains NaN in row 2"),
    "infinite site": ({"sites": [0.0, 1.0, float("inf")]}, "sites contains inf in row 2"),
    "no sites": ({"sites": torch.zeros(0, 2)}, "sites must have shape s x d"),
    "sites in a cube": ({"sites": torch.zeros(3, 1, 1)}, "sites must have shape s x d"),
    "the same site": ({"sites": [5.0, 1.0, 5.0]}, "sites 0, 2 are one and the same place"),
    "infinite value": ({"Y": FLAT.index_fill(1, torch.tensor([1]), -torch.inf)}, "Y contains -inf in row 0, column 1"),
    "nothing observed": ({"Y": FLAT * torch.nan}, "all 6 cells are missing"),
    "words": ({"Y": [["a", "b", "c"], ["d", "e", "f"]]}, "Y cannot be read"),
    "weights of rows": ({"sample_weight": [1.0, 1.0]}, r"must have the shape of Y, \(2, 3\)"),
    "a weight of zero": ({"sample_weight": FLAT}, "sample_weight must be positive"),
    "smooth in time": ({"time_kernel": gpytorch.kernels.RBFKernel()}, "RBFKernel has no state-space form"),
    "time on a column": ({"time_kernel": gpytorch.kernels.MaternKernel(active_dims=[1])}, "has one input"),
    "columns in space": ({"space_kernel": gpytorch.kernels.RBFKernel(ard_num_dims=4)}, "which has 1 columns"),
    "many sites": (
        {"sites": np.arange(201.0), "Y": np.zeros((2, 201))},
        r"201 sites x 2 numbers, 402, is too large: at most 400. An evaluation of 402 cells would take",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused(case: str) -> None:
    arguments, message = BAD[case]
    given: dict[str, Any] = {"times": [0.0, 1.0], "sites": [0.0, 1.0, 2.0], "Y": FLAT, **arguments}
    with pytest.raises(ValueError, match=message):
        SpaceTimeRCGP(**given)


@pytest.mark.parametrize("name", ["time_kernel", "space_kernel"])
def test_kernels_are_gpytorch_kernels(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} must be a GPyTorch kernel, got str"):
        SpaceTimeRCGP([0.0, 1.0], [0.0, 1.0, 2.0], FLAT, **{name: "matern"})


def test_bad_questions_are_refused() -> None:
    model = build()
    with pytest.raises(ValueError, match="sites must have shape s x 2"):
        model.posterior([1.0], [[1.0, 2.0, 3.0]])
    with pytest.raises(ValueError, match="times must have shape q"):
        model.posterior(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="times contains NaN"):
        model.posterior([torch.nan])
    with pytest.raises(ValueError, match="fit_robust"):
        fit(model)
