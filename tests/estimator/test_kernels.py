"""Kernels of scikit-learn, translated: the same function, the same bounds, the same parameters fixed."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import sklearn
import sklearn.gaussian_process.kernels as sk
import torch
from sklearn.gaussian_process import GaussianProcessRegressor

from problems import make_data
from rcgp import RCGPRegressor
from rcgp.estimator.kernels import translate
from rcgp.models.kernel_matrix import dense_kernel

ONE_FEATURE = {
    "periodic": sk.ExpSineSquared(1.3, 2.1),
    "periodic times rbf": sk.ExpSineSquared(0.7, 0.9) * sk.RBF(2.0),
}
TWO_FEATURES = {
    "rbf": sk.RBF(0.7),
    "ard rbf": sk.RBF([0.7, 2.0]),
    "matern 1/2": sk.Matern(0.9, nu=0.5),
    "matern 3/2": sk.Matern([0.9, 0.4], nu=1.5),
    "matern 5/2": sk.Matern(0.9, nu=2.5),
    "matern inf": sk.Matern(0.9, nu=np.inf),
    "rational quadratic": sk.RationalQuadratic(1.2, 0.6),
    "dot product": sk.DotProduct(1.7),
    "constant": sk.ConstantKernel(2.3),
    "scaled": 2.3 * sk.RBF(0.7),
    "scaled from the right": sk.RBF(0.7) * 2.3,
    "constants": sk.ConstantKernel(2.0) * sk.ConstantKernel(3.0),
    "sum": sk.RBF(0.7) + 0.5 * sk.Matern(1.1) + sk.DotProduct(0.3),
    "product": sk.RBF(0.7) * sk.RationalQuadratic(1.2, 0.6) * sk.DotProduct(1.0),
    "scaled sum": 1.5 * (sk.RBF(0.7) + sk.DotProduct(2.0)),
}
TRANSLATABLE = {**ONE_FEATURE, **TWO_FEATURES}


@pytest.mark.parametrize("name", TRANSLATABLE)
def test_a_translated_kernel_is_the_same_function(name):
    d = 1 if name in ONE_FEATURE else 2
    A, B = np.random.default_rng(0).normal(size=(2, 8, d))
    kernel, noise = translate(TRANSLATABLE[name], d)
    assert noise is None
    ours = dense_kernel(kernel, torch.tensor(A), torch.tensor(B)).detach().numpy()
    np.testing.assert_allclose(ours, TRANSLATABLE[name](A, B), rtol=1e-10, atol=1e-12)


def test_every_kernel_of_the_table_is_tried_here():
    from rcgp.estimator.kernels import _LEAVES

    def leaves(kernel):
        parts = [getattr(kernel, name) for name in ("k1", "k2") if hasattr(kernel, name)]
        return set().union(*map(leaves, parts)) if parts else {type(kernel)}

    assert set().union(*map(leaves, TRANSLATABLE.values())) == set(_LEAVES)


@pytest.mark.parametrize(
    ("kernel", "variance", "bounds", "fixed"),
    [
        (sk.RBF() + sk.WhiteKernel(0.3), 0.3, (1e-5, 1e5), False),
        (sk.WhiteKernel(0.3, (0.1, 2.0)) + sk.RBF(), 0.3, (0.1, 2.0), False),
        (sk.RBF() + 2.0 * sk.WhiteKernel(0.3, "fixed"), 0.6, (0.3 * 1e-5, 0.3 * 1e5), False),
        (sk.RBF() + sk.WhiteKernel(0.3, "fixed"), 0.3, (0.3, 0.3), True),
        (sk.RBF() + sk.WhiteKernel(0.3, (0.1, 1)) + sk.WhiteKernel(0.2, (0.1, 1)), 0.5, (0.2, 2), False),
        (2.0 * (sk.RBF() + sk.WhiteKernel(0.3, (0.1, 1))), 0.6, (0.1 * 1e-5, 1e5), False),
    ],
)
def test_white_noise_becomes_the_noise_variance(kernel, variance, bounds, fixed):
    translated, noise = translate(kernel, 1)
    assert translated is not None
    assert noise == pytest.approx(np.array([variance, *bounds]))
    assert bool(noise[1] == noise[2]) is fixed


@pytest.mark.parametrize(
    ("kernel", "d", "message"),
    [
        (sk.RBF() ** 2, 1, "Exponentiation.* has no GPyTorch counterpart"),
        (sk.PairwiseKernel(), 1, "PairwiseKernel.* has no GPyTorch counterpart"),
        (sk.RBF() + sk.CompoundKernel([sk.RBF()]), 1, "CompoundKernel"),
        (sk.Matern(nu=0.7), 1, "nu must be 0.5, 1.5, 2.5 or inf.*got 0.7"),
        (sk.ExpSineSquared(), 2, "one feature only, and the data have 2"),
        (sk.RBF([1.0, 2.0]), 3, "2 length scales, the data have 3 features"),
        (sk.RBF() * sk.WhiteKernel(), 1, "multiplied by a ConstantKernel only"),
        (sk.WhiteKernel(), 1, "nothing but noise"),
    ],
)
def test_a_kernel_that_cannot_be_translated_is_a_clear_error(kernel, d, message):
    with pytest.raises(ValueError, match=message):
        translate(kernel, d)


def test_a_custom_kernel_class_is_refused():
    class Mine(sk.RBF):
        """Its __call__ may say anything."""

    with pytest.raises(ValueError, match="Mine"):
        translate(Mine(), 1)


def fitted_pair(kernel, **arguments):
    X, y = make_data(60)
    ours = RCGPRegressor(kernel=kernel, weight="constant", mean="zero", normalize=False, **arguments).fit(X, y)
    theirs = GaussianProcessRegressor(kernel=kernel).fit(X, y)
    return ours, theirs


def test_a_fit_with_a_translated_kernel_finds_scikit_learns_optimum():
    ours, theirs = fitted_pair(1.0 * sk.RBF([1.0, 1.0]) + sk.WhiteKernel(0.1))
    assert ours.fit_report_.value == pytest.approx(theirs.log_marginal_likelihood_value_, abs=1e-4)
    np.testing.assert_allclose(ours.lengthscales_, theirs.kernel_.k1.k2.length_scale, rtol=1e-2)
    X = np.random.default_rng(1).uniform(-2, 2, (9, 2))
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), atol=2e-3)


@pytest.mark.filterwarnings("ignore::rcgp.estimator.NoiseLawWarning")  # bounds that keep the fit from the data
def test_bounds_hold_and_can_be_reached():
    kernel = sk.ConstantKernel(1.0, "fixed") * sk.RBF(1.0, (3.0, 10.0)) + sk.WhiteKernel(1e-3, (1e-4, 2e-3))
    with pytest.warns(sklearn.exceptions.ConvergenceWarning, match="close to the specified"):  # scikit-learn's
        ours, theirs = fitted_pair(kernel)
    assert theirs.kernel_.k1.k2.length_scale == pytest.approx(3.0)  # so that the test means something
    assert ours.lengthscales_ == pytest.approx([3.0, 3.0])
    assert ours.noise_variance_ == pytest.approx(2e-3)
    assert ours.kernel_.outputscale.item() == pytest.approx(1.0)


@pytest.mark.filterwarnings("ignore::rcgp.estimator.NoiseLawWarning")  # the kernel does not fit the data
def test_fixed_parameters_stay():
    kernel = sk.ConstantKernel(2.0, "fixed") * sk.RBF(0.7, "fixed") + sk.WhiteKernel(0.05, "fixed")
    ours, theirs = fitted_pair(kernel)
    assert ours.noise_variance_ == pytest.approx(0.05)
    X = np.random.default_rng(1).uniform(-2, 2, (9, 2))
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=1e-7, atol=1e-9)


def test_the_unit_of_y_scales_kernel_and_noise():
    """With normalize the same kernel serves y in any unit."""
    X, y = make_data(40)
    kernel = sk.ConstantKernel(2.0, "fixed") * sk.RBF(0.7, "fixed") + sk.WhiteKernel(0.05, "fixed")
    one, other = (RCGPRegressor(kernel=kernel).fit(X, unit * y) for unit in (1.0, 1e6))
    np.testing.assert_allclose(other.predict(X), 1e6 * one.predict(X), rtol=1e-8)
    assert other.noise_variance_ == pytest.approx(1e12 * one.noise_variance_)


@pytest.mark.parametrize("name", TRANSLATABLE)
def test_a_translated_kernel_can_be_shown_copied_and_pickled(name):
    d = 1 if name in ONE_FEATURE else 2
    kernel, _ = translate(TRANSLATABLE[name], d)
    assert "Kernel" in repr(kernel)
    X = torch.tensor(np.random.default_rng(0).normal(size=(5, d)))
    for twin in (copy.deepcopy(kernel), pickle.loads(pickle.dumps(kernel))):
        torch.testing.assert_close(dense_kernel(twin, X, X), dense_kernel(kernel, X, X), rtol=0.0, atol=0.0)
