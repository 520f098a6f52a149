from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import scipy.linalg
import torch

from rcgp.series.kernels import Term
from rcgp.series.solver import StateSpace
from rcgp.series.transitions import COSINE, LINEAR, MATERN, simulation, slopes

HALF, THREE_HALVES, FIVE_HALVES = MATERN[0.5], MATERN[1.5], MATERN[2.5]

#: Terms: a coefficient, and kind and parameter of each factor.
TERMS = {
    "matern12": (1.5, ((HALF, 0.8),)),
    "matern32": (1.5, ((THREE_HALVES, 0.8),)),
    "matern52": (1.5, ((FIVE_HALVES, 0.8),)),
    "cosine": (1.5, ((COSINE, 0.8),)),
    "linear": (1.5, ((LINEAR, 0.0),)),
    "constant": (1.5, ()),
    "matern12 x cosine": (0.7, ((HALF, 0.8), (COSINE, 1.9))),
    "matern32 x matern52": (0.7, ((THREE_HALVES, 0.8), (FIVE_HALVES, 0.3))),
    "linear x matern52": (0.7, ((LINEAR, 0.0), (FIVE_HALVES, 0.8))),
    "matern12 x cosine x matern32": (0.7, ((HALF, 0.5), (COSINE, 1.9), (THREE_HALVES, 0.8))),
}

#: From 1e-9 lengthscales to 1e9.
GAPS = np.array([1e-9, 1e-6, 1e-3, 0.1, 0.3125, 0.35, 1.0, 3.0, 30.0, 300.0, 1e3, 1e6, 1e9])
START = 0.75


def space_of(coefficient, factors):
    def tensor(value):
        return torch.tensor(value, dtype=torch.float64)

    return StateSpace([Term(tensor(coefficient), tuple((kind, tensor(theta)) for kind, theta in factors))])


def transitions_of(name, gaps=GAPS):
    space = space_of(*TERMS[name])
    d = space.size
    return tuple(part.reshape(-1, d, d) for part in space.fill(gaps, START + gaps))


# Twins of many digits ------------------------------------------------------------------------------------------------


def drift(kind):
    """F of dx = F x dt + noise, in units of the factor's parameter."""
    return {
        HALF: [[-1]],
        THREE_HALVES: [[0, 1], [-1, -2]],
        FIVE_HALVES: [[0, 1, 0], [0, 0, 1], [-1, -3, -3]],
        COSINE: [[0, -1], [1, 0]],
        LINEAR: [[0, 1], [0, 0]],
    }[kind]


def stationary(kind, time):
    """Covariance of the state at a time."""
    third = mpmath.mpf(1) / 3
    return {
        HALF: [[1]],
        THREE_HALVES: [[1, 0], [0, 1]],
        FIVE_HALVES: [[1, 0, -third], [0, third, 0], [-third, 0, 1]],
        COSINE: [[1, 0], [0, 1]],
        LINEAR: [[time**2, time], [time, 1]],
    }[kind]


def kron(left, right):
    rows, columns = right.rows, right.cols
    result = mpmath.matrix(left.rows * rows, left.cols * columns)
    for i in range(result.rows):
        for j in range(result.cols):
            result[i, j] = left[i // rows, j // columns] * right[i % rows, j % columns]
    return result


def twin(coefficient, factors, gap, start=START):
    """A and Q = P − A P_before Aᵀ of a gap, from matrix exponentials and Kronecker products of a hundred digits."""
    start, gap = mpmath.mpf(start), mpmath.mpf(gap)
    end = mpmath.mpf(float(start + gap))
    A, before, after = mpmath.matrix([[1]]), mpmath.matrix([[coefficient]]), mpmath.matrix([[coefficient]])
    for kind, theta in factors:
        # A trend has no parameter: its drift is in units of time.
        A = kron(A, mpmath.expm(mpmath.matrix(drift(kind)) * gap * (1 if kind == LINEAR else theta)))
        before = kron(before, mpmath.matrix(stationary(kind, end - gap)))
        after = kron(after, mpmath.matrix(stationary(kind, end)))
    return A, after - A * before * A.T


def to_numpy(matrix):
    return np.array(matrix.tolist(), dtype=float)


@pytest.fixture(autouse=True)
def _hundred_digits():
    with mpmath.workdps(100):
        yield


@pytest.mark.parametrize("name", TERMS)
def test_transitions_have_all_digits_for_gaps_from_1e_minus_9_to_1e9_lengthscales(name):
    coefficient, factors = TERMS[name]
    A, Q = transitions_of(name)
    turns = max((theta for kind, theta in factors if kind == COSINE), default=0.0)
    for g, gap in enumerate(GAPS):
        wanted_A, wanted_Q = (to_numpy(part) for part in twin(coefficient, factors, gap))
        # The angle of a cosine is a rounded product.
        angle = 1e-15 * turns * gap
        np.testing.assert_allclose(A[g], wanted_A, rtol=1e-13, atol=1e-15 + angle, err_msg=f"{gap=}")
        # Where the incomplete gamma function of order five is 3e-4 = 1 − 0.9997, three digits are lost.
        digits = 1e-14 if gap < 0.3 else 1e-12
        scale = np.sqrt(np.abs(np.diag(wanted_Q)))
        bound = (digits + angle) * np.outer(scale, scale) + 1e-90
        assert (np.abs(Q[g] - wanted_Q) <= bound).all(), f"{gap=}"


@pytest.mark.parametrize("name", ["matern12", "matern32", "matern52"])
def test_process_noise_is_the_integral_of_its_definition(name):
    """q = ∫ a(u) L Lᵀ a(u)ᵀ du by quadrature, with scipy's matrix exponential."""
    coefficient, ((kind, theta),) = TERMS[name]
    F, d = np.array(drift(kind), dtype=float), len(drift(kind))
    P = to_numpy(mpmath.matrix(stationary(kind, START)))
    diffusion = -(F @ P + P @ F.T)  # of a stationary process
    for gap in (0.01, 0.4, 2.0):
        nodes, weights = np.polynomial.legendre.leggauss(30)
        u = 0.5 * theta * gap * (nodes + 1.0)
        steps = [scipy.linalg.expm(F * part) for part in u]
        integral = sum(w * a @ diffusion @ a.T for w, a in zip(weights, steps, strict=True)) * 0.5 * theta * gap
        A, Q = transitions_of(name, np.array([gap]))
        np.testing.assert_allclose(Q[0], coefficient * integral, rtol=1e-9, atol=1e-15)
        np.testing.assert_allclose(A[0], scipy.linalg.expm(F * theta * gap), rtol=1e-12, atol=1e-14)
        assert np.linalg.matrix_rank(diffusion, tol=1e-12) == 1
        assert A.shape == (1, d, d)


@pytest.mark.parametrize("name", TERMS)
def test_process_noise_is_positive_semidefinite(name):
    _, Q = transitions_of(name)
    for part in Q:
        scale = np.sqrt(np.diag(part))
        scale[scale == 0.0] = 1.0
        assert np.linalg.eigvalsh(part / np.outer(scale, scale)).min() > -1e-15 * len(part)
        L = simulation()[0](part)
        assert np.abs(np.triu(L, 1)).max() == 0.0
        np.testing.assert_allclose(L @ L.T, part, rtol=1e-12, atol=1e-13 * np.abs(part).max())


def test_the_root_of_a_singular_matrix_has_columns_of_zeros():
    v = np.array([2.0, -1.0, 0.5])
    L = simulation()[0](np.outer(v, v))
    np.testing.assert_allclose(L, np.outer(v, [1.0, 0.0, 0.0]), atol=1e-15)
    assert not simulation()[0](np.zeros((2, 2))).any()


@pytest.mark.parametrize("name", TERMS)
def test_the_prior_is_what_transitions_preserve(name):
    coefficient, factors = TERMS[name]
    space = space_of(coefficient, factors)
    A, Q = transitions_of(name)
    for g, gap in enumerate(GAPS[:9]):
        before, after = space.prior(START), space.prior(START + gap)
        np.testing.assert_allclose(A[g] @ before @ A[g].T + Q[g], after, rtol=1e-12, atol=1e-12 * after.max())


@pytest.mark.parametrize("name", TERMS)
def test_slopes_are_the_derivatives_of_transitions(name):
    """∂A/∂θ = Δ F A and ∂Q/∂θ = Δ (F Q + Q Fᵀ + c N), against forward differences of a hundred digits."""
    coefficient, factors = TERMS[name]
    step = mpmath.mpf(10) ** -40
    for gap in GAPS[:8]:
        A, Q = twin(coefficient, factors, gap)
        time = mpmath.mpf(float(START + gap))
        for f, ((kind, theta), (F, N)) in enumerate(zip(factors, slopes(tuple(k for k, _ in factors)), strict=True)):
            if kind == LINEAR:
                assert not F.any()
                continue
            moved = twin(coefficient, (*factors[:f], (kind, theta + step), *factors[f + 1 :]), gap)
            by_A, by_Q = ((after - before) / step for after, before in zip(moved, (A, Q), strict=True))
            F, gap = mpmath.matrix(F.tolist()), mpmath.mpf(gap)
            noise = coefficient * sum((mpmath.matrix(part.tolist()) * time**k for k, part in enumerate(N)), 0 * Q)
            scale = float(gap) * coefficient
            for found, wanted in ((gap * F * A, by_A), (gap * (F * Q + Q * F.T + noise), by_Q)):
                np.testing.assert_allclose(to_numpy(found), to_numpy(wanted), rtol=1e-13, atol=1e-15 * scale)


def test_a_gap_beyond_all_lengthscales_forgets():
    for name in ("matern12", "matern32", "matern52", "matern12 x cosine x matern32"):
        space = space_of(*TERMS[name])
        A, Q = transitions_of(name, np.array([1e9, 1e300]))
        assert np.abs(A).max() == 0.0
        np.testing.assert_allclose(Q[0], space.prior(0.0), rtol=1e-15)
        np.testing.assert_allclose(Q[1], space.prior(0.0), rtol=1e-15)


@pytest.mark.parametrize("gap", [1e-9, 0.5, 7.0])
def test_the_first_entry_of_a_state_is_the_process(gap):
    values = {
        "matern12": math.exp(-0.8 * gap),
        "matern32": (1.0 + 0.8 * gap) * math.exp(-0.8 * gap),
        "matern52": (1.0 + 0.8 * gap + (0.8 * gap) ** 2 / 3.0) * math.exp(-0.8 * gap),
        "cosine": math.cos(0.8 * gap),
        "linear": START * (START + gap),
        "constant": 1.0,
    }
    for name, value in values.items():
        coefficient, factors = TERMS[name]
        A, _ = transitions_of(name, np.array([gap]))
        assert (A[0] @ space_of(coefficient, factors).prior(START))[0, 0] == pytest.approx(
            coefficient * value, rel=1e-14
        )
