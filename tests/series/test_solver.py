from __future__ import annotations

import os
import subprocess
import sys

import mpmath
import numpy as np
import pytest
import torch
from numba.core.caching import NullCache
from numba.extending import is_jitted

from optional_parts import optional
from rcgp.core.exact import condition, leave_one_out, signal_evidence
from rcgp.core.pseudo import PseudoData
from rcgp.series import passes, solver, step, transitions
from rcgp.series.kernels import Term, _Harmonics, harmonic_error, layout_of, terms_of
from rcgp.series.passes import compiled
from rcgp.series.solver import Axis, StateSpace, evidence
from series_kernels import (
    HARMONICS,
    KERNELS,
    constant,
    cosine,
    covariance,
    linear,
    matern,
    periodic,
    scaled,
    with_marks,
)


def make_rows(case, n=40, seed=0):
    """Times in order, targets and root precisions."""
    random = np.random.default_rng(seed)
    t = np.sort(random.uniform(0.3, 6.0, n))
    z, s = np.sin(2.0 * t) + 0.3 * random.standard_normal(n), 3.0 * random.uniform(0.5, 1.5, n)
    if case == "repeated":
        t = np.sort(np.round(t, 0))
    elif case == "regular":
        t = np.linspace(-3.0, 3.0, n)
    elif case == "missing":
        s[::3] = 1e-9
    elif case == "clustered":
        t = np.sort(np.concatenate([t[: n // 2], t[: n - n // 2] + 1e-7]))
    elif case == "far":
        t[n // 2 :] += 1e9
    return t, z, s


CASES = ("irregular", "repeated", "regular", "missing", "clustered", "far")


def check_gradients(found, wanted, tolerance=1e-6):
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * max(1.0, float(theirs.abs().max())))


def check_solver(kernel, t, z, s):
    """Evidence, leave-one-out and gradients of a kernel equal those of its dense matrix."""
    times, targets = torch.from_numpy(t), torch.from_numpy(z).requires_grad_()
    precisions = torch.from_numpy(s).requires_grad_()
    pseudo, inputs = PseudoData(targets, precisions), [*kernel.parameters(), targets, precisions]
    value = evidence(terms_of(kernel, HARMONICS), Axis(t), targets, precisions)
    K = covariance(kernel, times, times)
    wanted = signal_evidence(K, pseudo)
    torch.testing.assert_close(value, wanted, rtol=1e-8, atol=1e-8)
    check_gradients(torch.autograd.grad(value, inputs), torch.autograd.grad(wanted, inputs, retain_graph=True))
    with torch.no_grad():
        space = StateSpace(terms_of(kernel, HARMONICS))
        found, dense = space.moments(Axis(t), z, s**2), leave_one_out(K, pseudo)
        scale = float(K.diagonal().max())
        np.testing.assert_allclose(found.mean, dense.mean, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(found.variance, dense.variance, rtol=1e-8, atol=1e-8 * scale)
        assert space.evidence(Axis(t), z, s**2) == pytest.approx(float(wanted), rel=1e-8, abs=1e-8)


# Every kernel, and every kind of times with Matérn-3/2 and a sum: not the product of both.
PAIRS = [(name, CASES[i % 4]) for i, name in enumerate(KERNELS)]
PAIRS += [(name, case) for name in ("matern32", "sum") for case in CASES if (name, case) not in PAIRS and case != "far"]
PAIRS += [("matern12", "far"), ("matern52", "far"), ("product", "clustered"), ("linear x matern", "repeated")]


@pytest.mark.parametrize(("name", "case"), with_marks(PAIRS))
def test_evidence_leave_one_out_and_gradients_equal_the_dense_ones(name, case):
    check_solver(KERNELS[name](), *make_rows(case))


@pytest.mark.parametrize("name", ["matern32", "sum", "linear x matern"])
@pytest.mark.parametrize("case", ["irregular", "repeated"])
def test_results_do_not_depend_on_stretches(name, case, monkeypatch):
    monkeypatch.setattr(solver, "_STRETCH", 1)
    t, z, s = make_rows(case, n=100)
    kernel = KERNELS[name]()
    assert len(Axis(t).stretches(layout_of(terms_of(kernel)))) == 7
    check_solver(kernel, t, z, s)
    random = np.random.default_rng(0)
    few = StateSpace(terms_of(kernel)).draw(Axis(t), random)
    monkeypatch.undo()
    many = StateSpace(terms_of(kernel)).draw(Axis(t), np.random.default_rng(0))
    assert few[0] == many[0]


def test_equal_gaps_are_computed_once():
    layout = layout_of(terms_of(matern(1.5)))
    (stretch,) = Axis(np.arange(1000.0)).stretches(layout)
    assert stretch.gaps.tolist() == [1.0]
    (stretch,) = Axis(np.arange(1000.0)).stretches(layout_of(terms_of(linear() * matern(1.5))))
    assert len(stretch.gaps) == 999


def test_by_default_a_long_series_has_several_stretches():
    layout = layout_of(terms_of(matern(1.5)))
    stretches = Axis(np.arange(100_000.0)).stretches(layout)
    assert len(stretches) > 1
    assert [part.rows.start for part in stretches[1:]] == [part.rows.stop for part in stretches[:-1]]
    assert stretches[-1].rows.stop == 100_000


def test_a_missing_value_has_the_posterior_for_its_leave_one_out():
    t, z, s = make_rows("irregular")
    space, w = StateSpace(terms_of(KERNELS["matern32"]())), s**2
    w[7] = 0.0
    found = space.moments(Axis(t), z, w)
    without = np.delete(np.arange(len(t)), 7)
    K = covariance(KERNELS["matern32"](), *2 * [torch.from_numpy(t)]).detach()
    posterior = condition(
        K[without][:, without], PseudoData(torch.from_numpy(z[without]), torch.from_numpy(s[without]))
    )
    np.testing.assert_allclose(found.mean[7], posterior.mean(K[7:8, without]).item(), atol=1e-10)
    np.testing.assert_allclose(found.variance[7], posterior.variance(K[7:8, without], K[7, 7]).item(), atol=1e-10)
    assert found.value == pytest.approx(space.evidence(Axis(t[without]), z[without], s[without] ** 2), abs=1e-10)


def test_rows_of_one_time_may_observe_copies_of_a_process_at_different_sites():
    """Two independent copies, mixed at three sites: the kernel BBᵀ ⊗ k, with the gradient by B."""
    kernel = KERNELS["matern32"]()
    random = np.random.default_rng(0)
    t, z, s = make_rows("repeated", n=36)
    place = random.integers(0, 3, len(t))
    targets, precisions = torch.from_numpy(z).requires_grad_(), torch.from_numpy(s).requires_grad_()
    B = torch.tensor([[1.0, 0.0], [0.6, -0.5], [0.2, 1.3]], dtype=torch.float64, requires_grad=True)
    h = torch.from_numpy(layout_of(terms_of(kernel)).values)
    value = evidence(terms_of(kernel), Axis(t, place), targets, precisions, torch.kron(B, h), copies=2)
    K = covariance(kernel, torch.from_numpy(t), torch.from_numpy(t)) * (B @ B.T)[place][:, place]
    wanted = signal_evidence(K, PseudoData(targets, precisions))
    torch.testing.assert_close(value, wanted, rtol=1e-10, atol=1e-10)
    inputs = [*kernel.parameters(), targets, precisions, B]
    check_gradients(torch.autograd.grad(value, inputs), torch.autograd.grad(wanted, inputs))


def test_the_evidence_passes_gradcheck():
    t, z, s = make_rows("repeated", n=12)
    terms = terms_of(KERNELS["sum of two"]())
    axis, coefficients = Axis(t), torch.tensor([1.8, 0.6], dtype=torch.float64, requires_grad=True)
    thetas = torch.tensor([2.5, 2.4], dtype=torch.float64, requires_grad=True)

    def value(coefficients, thetas, z, s):
        own = [Term(c, ((term.factors[0][0], x),)) for term, c, x in zip(terms, coefficients, thetas, strict=True)]
        return evidence(own, axis, z, s)

    rows = torch.from_numpy(z).requires_grad_(), torch.from_numpy(s).requires_grad_()
    assert torch.autograd.gradcheck(value, (coefficients, thetas, *rows), atol=1e-6)


@pytest.mark.parametrize("lengthscale", [0.2, 0.7, 5.0])
def test_the_gradient_by_a_periodic_lengthscale_is_that_of_its_harmonics(lengthscale):
    x = torch.tensor(1.0 / lengthscale, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: _Harmonics.apply(x, 5), (x,))


@pytest.mark.slow
def test_the_second_start_compiles_nothing(tmp_path):
    code = (
        "import numpy as np, gpytorch\n"
        "from rcgp.series.kernels import terms_of\n"
        "from rcgp.series.solver import Axis, StateSpace\n"
        "kernel = gpytorch.kernels.MaternKernel(nu=0.5)\n"
        "StateSpace(terms_of(kernel)).moments(Axis(np.arange(3.0)), np.ones(3), np.ones(3), gradient=True)\n"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    compiled = []
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)
        compiled.append(sorted(path.name for path in tmp_path.rglob("*.nbc")))
    assert compiled[0] == compiled[1]
    assert any("backward" in name for name in compiled[0])


# Periodic kernels ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengthscale", [0.05, 0.3, 1.0, 4.0])
def test_harmonic_error_is_the_largest_error_of_the_kernel(lengthscale):
    kernel, tau = periodic(1.1, lengthscale), np.linspace(0.0, 1.1, 2001)
    exact = np.exp(-2.0 * np.sin(np.pi * tau / 1.1) ** 2 / lengthscale)
    last = 1.0
    for harmonics in (1, 2, 4, 8):
        with torch.no_grad():
            terms = terms_of(kernel, harmonics)
        angles = [sum(float(theta) for _, theta in term.factors) for term in terms]
        kept = sum(float(term.coefficient) * np.cos(x * tau) for term, x in zip(terms, angles, strict=True))
        error, stated = np.abs(kept - exact).max(), harmonic_error(kernel, harmonics)
        assert error <= stated + 1e-14  # rounding
        assert error == pytest.approx(stated, rel=1e-6, abs=1e-14)  # reached at τ = 0
        assert stated < last or stated < 1e-15
        last = stated


def test_harmonic_error_looks_into_sums_and_products():
    assert harmonic_error(matern(1.5)) == 0.0
    rough, smooth = periodic(lengthscale=0.1), periodic(lengthscale=3.0)
    whole = scaled(matern(1.5) * rough) + smooth
    assert harmonic_error(whole) == harmonic_error(rough) > harmonic_error(smooth)


def test_the_default_number_of_harmonics_has_the_stated_error():
    assert harmonic_error(periodic(lengthscale=1.0)) < 1e-7
    assert harmonic_error(periodic(lengthscale=0.3)) < 4e-4
    assert harmonic_error(periodic(lengthscale=0.1)) < 0.07


# celerite2 -----------------------------------------------------------------------------------------------------------

RATE, FREQUENCY = 1.0 / 0.7, np.pi / 1.3

# An oscillator that is no product of a Matérn kernel and a cosine has a sine, b ≠ 0. celerite2's Matérn-3/2 is the
# limit of small eps, wrong by eps² τ².
CELERITE = {
    "real": (lambda terms: terms.RealTerm(a=1.8, c=RATE), lambda: scaled(matern(0.5))),
    "complex": (
        lambda terms: terms.ComplexTerm(a=1.8, b=0.0, c=RATE, d=FREQUENCY),
        lambda: scaled(matern(0.5)) * cosine(),
    ),
    "sum": (
        lambda terms: terms.RealTerm(a=1.8, c=RATE) + terms.ComplexTerm(a=0.6, b=0.0, c=RATE, d=FREQUENCY),
        lambda: scaled(matern(0.5)) + scaled(matern(0.5) * cosine(), 0.6),
    ),
    "matern32": (
        lambda terms: terms.Matern32Term(sigma=np.sqrt(1.8), rho=0.7, eps=1e-5),
        lambda: scaled(matern(1.5)),
    ),
}


@pytest.mark.parametrize("name", CELERITE)
def test_log_likelihood_is_celerites(name):
    celerite, (term, kernel) = optional("celerite2"), CELERITE[name]
    t, z, _ = make_rows("irregular", n=1000)
    gp = celerite.GaussianProcess(term(celerite.terms), mean=0.0)
    gp.compute(t, diag=np.full(len(t), 0.04))
    w = np.full(len(t), 1.0 / 0.04)
    value = StateSpace(terms_of(kernel())).evidence(Axis(t), z, w) + 0.5 * np.log(w / (2.0 * np.pi)).sum()
    assert value == pytest.approx(gp.log_likelihood(z), rel=1e-8)


# Numbers that are hard to compute with -------------------------------------------------------------------------------


def precise(kernel, t, z, noise, digits=60):
    """ℓ, and leave-one-out means and variances, from inverses of sixty digits."""
    with mpmath.workdps(digits):
        K = mpmath.matrix(len(t), len(t))
        rate = mpmath.sqrt(3) / mpmath.mpf(kernel.base_kernel.lengthscale.item())
        scale = mpmath.mpf(kernel.outputscale.item())
        for i, a in enumerate(t):
            for j, b in enumerate(t):
                x = rate * abs(mpmath.mpf(a) - mpmath.mpf(b))
                K[i, j] = scale * (1 + x) * mpmath.exp(-x)
        r, target = 1 / mpmath.mpf(1.0 / noise), mpmath.matrix(list(map(float, z)))
        whole = K + r * mpmath.eye(len(t))
        inverse = whole**-1
        alpha = inverse * target
        value = -(mpmath.log(mpmath.det(whole / r)) + (target.T * alpha)[0]) / 2
        mean = [float(target[i] - alpha[i] / inverse[i, i]) for i in range(len(t))]
        return float(value), np.array(mean), np.array([float(1 / inverse[i, i] - r) for i in range(len(t))])


@pytest.mark.parametrize("gap", [0.3, 1e-3])
@pytest.mark.parametrize("noise", [1e-2, 1e-12])
def test_tiny_noise_costs_no_digits(gap, noise):
    kernel = KERNELS["matern32"]()
    t = gap * np.cumsum(np.random.default_rng(0).uniform(0.5, 1.5, 12))
    z = np.sin(3.0 * t)
    value, mean, variance = precise(kernel, t, z, 1.8 * noise)
    found = StateSpace(terms_of(kernel)).moments(Axis(t), z, np.full(12, 1.0 / (1.8 * noise)))
    assert found.value == pytest.approx(value, rel=1e-8)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(found.variance, variance, rtol=1e-6, atol=1e-12)


def regression(features, variances, t, z, w):
    """Posterior mean and variance of Σ_j β_j φ_j(t), β_j ~ N(0, v_j), from sums of extended precision."""
    phi = np.stack(features(t.astype(np.longdouble)), axis=-1)
    precision = (phi * w[:, None]).T @ phi + np.diag(1.0 / np.array(variances, dtype=np.longdouble))
    with mpmath.workdps(40):
        inverse = mpmath.matrix([[mpmath.mpf(str(value)) for value in row] for row in precision]) ** -1
        S = np.array([[np.longdouble(mpmath.nstr(value, 30)) for value in row] for row in inverse.tolist()])
    beta = S @ (phi * (w * z)[:, None]).sum(axis=0)
    return (phi @ beta).astype(float), ((phi @ S) * phi).sum(axis=1).astype(float)


NOISELESS = {
    "constant": (lambda: constant(1.7), lambda t: [np.ones_like(t)], [1.7]),
    "cosine": (lambda: scaled(cosine(np.pi / 2.0), 0.6), lambda t: [np.cos(2 * t), np.sin(2 * t)], [0.6, 0.6]),
    "constant and cosine": (
        lambda: constant(1.7) + scaled(cosine(np.pi / 2.0), 0.6),
        lambda t: [np.ones_like(t), np.cos(2 * t), np.sin(2 * t)],
        [1.7, 0.6, 0.6],
    ),
    "all": (
        lambda: constant(1.7) + linear(0.4) + scaled(cosine(np.pi / 2.0), 0.6),
        lambda t: [np.ones_like(t), t, np.cos(2 * t), np.sin(2 * t)],
        [1.7, 0.4, 0.6, 0.6],
    ),
}


# The prior of a trend's state (w t, w) is singular. Rounding errors of the first rows, 1e-16 of the variance of w, stay
# in its posterior variance, which is 1e-10 of it here: half a percent of the largest posterior standard deviation. A
# constant beside it fills the prior's gap, and they fade.
SINGULAR = {
    "linear": (lambda: linear(0.4), lambda t: [t], [0.4]),
    "linear and cosine": (
        lambda: linear(0.4) + scaled(cosine(np.pi / 2.0), 0.6),
        lambda t: [t, np.cos(2 * t), np.sin(2 * t)],
        [0.4, 0.6, 0.6],
    ),
}


@pytest.mark.parametrize("name", [*NOISELESS, *SINGULAR])
def test_a_hundred_thousand_steps_without_process_noise_are_bayesian_regression(name):
    kernel, features, variances = {**NOISELESS, **SINGULAR}[name]
    n, random = 100_000, np.random.default_rng(0)
    t = np.sort(random.uniform(-50.0, 50.0, n))
    z = 1.0 + 0.1 * t + np.sin(2.0 * t) + 0.1 * random.standard_normal(n)
    w = np.full(n, 100.0)
    w[5::10] = 0.0  # their leave-one-out moments are those of the posterior
    mean, variance = (part[5::10] for part in regression(features, variances, t, z, w))
    found = StateSpace(terms_of(kernel())).moments(Axis(t), z, w)
    assert variance.max() < 1e-6
    allowed = 0.005 * np.sqrt(variance.max()) if name in SINGULAR else 1e-8
    assert (np.abs(found.mean[5::10] - mean) <= allowed).all()
    np.testing.assert_allclose(found.variance[5::10], variance, atol=1e-4 * variance.max())


def test_gaps_of_1e9_lengthscales_separate_a_series_into_independent_ones():
    kernel = KERNELS["matern52"]()
    t, z, s = make_rows("far")
    space = StateSpace(terms_of(kernel))
    found, parts = space.moments(Axis(t), z, s**2), (slice(0, 20), slice(20, 40))
    alone = [space.moments(Axis(t[part]), z[part], s[part] ** 2) for part in parts]
    assert found.value == pytest.approx(sum(part.value for part in alone), rel=1e-13)
    np.testing.assert_allclose(found.mean, np.concatenate([part.mean for part in alone]), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found.variance, np.concatenate([part.variance for part in alone]), rtol=1e-12)


def test_compiled_code_of_two_layouts_is_kept_in_two_files():
    """Else processes that compile at the same time could load each other's code."""
    layouts = [((2,), True), ((1, 2), False), ((1, 2, 2), False)]
    for name in ("forward", "backward"):
        functions = [getattr(compiled(*layout), name).py_func for layout in layouts]
        assert len({function.__qualname__ for function in functions}) == len(layouts)
    assert compiled((2,), True).forward.py_func.__qualname__.startswith("forward-")


def test_every_function_that_is_kept_has_one_signature():
    """All signatures of a function share an index: see above."""
    own = [*compiled((2,), True), *(function.func for function in compiled((20,), False))]
    own += [step.compiled_step(), *transitions.simulation()]
    named = [part for module in (passes, transitions, step) for part in vars(module).values()]
    parts = [part for part in (*named, *own) if is_jitted(part)]
    kept = [part for part in parts if not isinstance(part._cache, NullCache)]
    assert len(kept) == 9
    for function in kept:
        assert len(function.signatures) == 1
        with pytest.raises(TypeError, match="No matching definition"):
            function(*("no number" for _ in function.signatures[0]))


def test_equal_gaps_are_kept_once_where_they_are_many():
    layout = layout_of(terms_of(matern(1.5)))
    (regular,) = Axis(np.arange(50.0)).stretches(layout)
    assert regular.gaps.tolist() == [1.0]
    assert regular.which.tolist() == [-1] + 49 * [0]
    times = np.sort(np.random.default_rng(0).uniform(0.0, 1.0, 50))
    (irregular,) = Axis(times).stretches(layout)
    np.testing.assert_array_equal(irregular.gaps, np.diff(times))
    assert irregular.which.tolist() == list(range(-1, 49))
