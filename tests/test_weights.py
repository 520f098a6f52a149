from __future__ import annotations

import copy
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference
from rcgp import RCGP, fit, weights
from rcgp.weights import (
    ByOutput,
    Constant,
    Heteroskedastic,
    InverseMultiquadric,
    LawWeight,
    NoiseLaw,
    NoNoiseTerm,
    NoShrinkage,
    OneSided,
    Product,
    SquaredExponential,
    ThresholdWeight,
    WeightFunction,
    quantile_threshold,
    smallest_weight,
)

NOISE = torch.tensor(0.3, dtype=torch.float64)


class OwnWeight(WeightFunction):
    """A user's class: the weight alone, no derivative."""

    def __init__(self):
        super().__init__()
        self.width = torch.nn.Parameter(torch.tensor(1.3, dtype=torch.float64))

    def forward(self, residual, inputs, noise):
        return 1.0 / (1.0 + (residual / self.width) ** 4)


#: One of each, so that a new class without an entry fails ``test_every_weight_function_is_covered``.
EXAMPLES = {
    "constant": lambda: Constant(),
    "heteroskedastic": lambda: Heteroskedastic(lambda x: 1.0 + x[..., 0] ** 2),
    "imq": lambda: InverseMultiquadric(c=0.8),
    "imq quantile": lambda: InverseMultiquadric(),
    "se": lambda: SquaredExponential(c=1.1),
    "se trainable": lambda: SquaredExponential(c=1.1, trainable=True),
    "one-sided": lambda: OneSided(InverseMultiquadric(c=0.8), "above"),
    "one-sided below": lambda: OneSided(SquaredExponential(c=0.8), "below"),
    "product": lambda: Product(InverseMultiquadric(c=0.8), SquaredExponential(c=2.0)),
    "no shrinkage": lambda: NoShrinkage(InverseMultiquadric(c=0.8)),
    "no noise term": lambda: NoNoiseTerm(InverseMultiquadric(c=0.8)),
    "law": lambda: LawWeight(
        NoiseLaw((0.7, 0.12, 0.06, 0.02), 0.1, 3.0),
        *(torch.tensor([value], dtype=torch.float64) for value in (0.2, 0.1)),
    ),
    "own": lambda: OwnWeight(),
}
TRUE_SLOPE = [name for name in EXAMPLES if not name.startswith("no ")]


def points(n=12, dtype=torch.float64):
    return torch.linspace(-3, 3.3, n, dtype=dtype), torch.linspace(0, 1, n, dtype=dtype).unsqueeze(-1)


def test_every_weight_function_is_covered():
    public = {getattr(weights, name) for name in weights.__all__ if isinstance(getattr(weights, name), type)}
    examined = {type(make()) for make in EXAMPLES.values()} | {ByOutput}  # with several outputs, in test_outputs.py
    assert public - {WeightFunction, ThresholdWeight, NoiseLaw} <= examined


@pytest.mark.parametrize("name", EXAMPLES)
def test_weights_lie_between_zero_and_one(name):
    e, x = points()
    w = EXAMPLES[name]()(e, x, NOISE)
    assert w.shape == e.shape
    assert ((w > 0) & (w <= 1)).all()


@pytest.mark.parametrize("name", TRUE_SLOPE)
def test_slope_is_the_derivative_of_the_log_squared_weight(name):
    weight = EXAMPLES[name]()
    e, x = points()
    weight = weight.frozen(e)  # the slope holds a data-dependent threshold fixed
    step = 1e-6
    with torch.no_grad():
        numeric = (weight(e + step, x, NOISE).log() - weight(e - step, x, NOISE).log()) / step
        torch.testing.assert_close(weight.slope(e, x, NOISE), numeric, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", TRUE_SLOPE)
def test_formula_for_the_slope_equals_autograd(name):
    weight = EXAMPLES[name]().frozen(points()[0])
    e, x = points()
    torch.testing.assert_close(
        weight.slope(e, x, NOISE), WeightFunction.slope(weight, e, x, NOISE), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("transcription", ["imq", "se"])
def test_radial_weights_equal_the_papers(transcription):
    e, x = points()
    cls = {"imq": InverseMultiquadric, "se": SquaredExponential}[transcription]
    c = reference.quantile_c(e.numpy())
    w, slope = getattr(reference, transcription)(e.numpy(), c, NOISE.item())
    np.testing.assert_allclose(cls()(e, x, NOISE), w * np.sqrt(2 / NOISE.item()), rtol=1e-12)
    np.testing.assert_allclose(cls().slope(e, x, NOISE), slope, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
# Not the quantile rule, whose c is as large as the residuals here, nor a user's own formula, which may overflow.
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in ("imq quantile", "own")])
def test_extreme_residuals_give_finite_weights_slopes_and_gradients(name, dtype):
    weight = EXAMPLES[name]().to(dtype)
    largest = 1e37 if dtype == torch.float32 else 1e300
    e = torch.tensor([0.0, 1.0, largest, -largest], dtype=dtype, requires_grad=True)
    x, noise = torch.zeros(4, 1, dtype=dtype), NOISE.to(dtype)
    w, slope = weight(e, x, noise), weight.slope(e, x, noise)
    gradients = torch.autograd.grad(
        w.sum() + (slope * w).sum() + 0 * e[0], [e, *weight.parameters()], allow_unused=True
    )
    for tensor in (w, slope, *(g for g in gradients if g is not None)):
        assert tensor.isfinite().all()


def test_weights_far_beyond_the_threshold_count_as_deleted():
    e, x = torch.tensor([1e300, -1e300], dtype=torch.float64), torch.zeros(2, 1, dtype=torch.float64)
    for weight in (InverseMultiquadric(c=1.0), SquaredExponential(c=1.0)):
        assert (weight(e, x, NOISE) <= smallest_weight(torch.float64)).all()


def test_heteroskedastic_noise_is_the_squared_rate_whatever_sigma():
    e, x = points()
    for noise in (0.1, 2.0):
        sigma2 = torch.tensor(noise, dtype=torch.float64)
        w = Heteroskedastic(lambda x: 0.5 + x[..., 0])(e, x, sigma2)
        torch.testing.assert_close(noise / w**2, (0.5 + x[:, 0]) ** 2)


def test_heteroskedastic_rejects_bad_rates():
    e, x = points()
    with pytest.raises(ValueError, match="positive: it is not in row 3"):
        Heteroskedastic(lambda x: (torch.arange(12) != 3).double())(e, x, NOISE)
    with pytest.raises(ValueError, match=r"tensor of shape \(12,\), got \(5,\)"):
        Heteroskedastic(lambda x: torch.ones(5))(e, x, NOISE)
    with pytest.raises(ValueError, match="got float"):
        Heteroskedastic(lambda x: 0.3)(e, x, NOISE)
    with pytest.raises(TypeError, match="callable"):
        Heteroskedastic(0.3)


def test_one_sided_keeps_full_weight_on_the_other_side():
    e, x = points()
    base = InverseMultiquadric(c=0.8)
    for side, trusted in (("above", e < 0), ("below", e > 0)):
        w, slope = OneSided(base, side)(e, x, NOISE), OneSided(base, side).slope(e, x, NOISE)
        assert (w[trusted] == 1).all()
        assert (slope[trusted] == 0).all()
        assert torch.equal(w[~trusted], base(e, x, NOISE)[~trusted])
    with pytest.raises(ValueError, match="above"):
        OneSided(base, "left")


def test_product_multiplies_weights_and_adds_slopes():
    e, x = points()
    first, second = InverseMultiquadric(c=0.8), Heteroskedastic(lambda x: 1 + x[..., 0])
    product = Product(first, second)
    torch.testing.assert_close(product(e, x, NOISE), first(e, x, NOISE) * second(e, x, NOISE))
    torch.testing.assert_close(product.slope(e, x, NOISE), first.slope(e, x, NOISE))
    assert not product.constant_in_y
    assert Product(Constant(), second).constant_in_y
    assert NoShrinkage(second).constant_in_y
    assert not OneSided(first, "above").constant_in_y
    with pytest.raises(TypeError, match="WeightFunction"):
        Product(first, 3.0)


def test_ablations_drop_one_term_each():
    e, x = points()
    base = InverseMultiquadric(c=0.8)
    assert torch.equal(NoShrinkage(base)(e, x, NOISE), base(e, x, NOISE))
    assert (NoShrinkage(base).slope(e, x, NOISE) == 0).all()
    assert (NoNoiseTerm(base)(e, x, NOISE) == 1).all()
    assert torch.equal(NoNoiseTerm(base).slope(e, x, NOISE), base.slope(e, x, NOISE))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_threshold_does_not_depend_on_the_largest_residual(dtype):
    e = torch.linspace(-1, 1, 40, dtype=dtype)
    thresholds = set()
    for size in (1e2, 1e8, 1e16, 1e37 if dtype == torch.float32 else 1e300):
        e[3] = size
        thresholds.add(quantile_threshold(e, 0.05).item())
    assert len(thresholds) == 1


def test_slope_by_autograd_works_in_inference_mode():
    e, x = points()
    weight = OwnWeight()
    expected = weight.slope(e, x, NOISE)
    with torch.inference_mode():
        assert torch.equal(weight.slope(e.clone(), x.clone(), NOISE.clone()), expected)


def test_a_torch_module_given_as_noise_rate_is_not_trained():
    rate = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Softplus(), torch.nn.Flatten(-2))
    X, y = torch.randn(15, 1), torch.randn(15)
    model = RCGP(X, y, weight=Heteroskedastic(rate))
    before = [parameter.clone() for parameter in rate.parameters()]
    fit(model, max_iterations=3)
    assert all(torch.equal(a, b) for a, b in zip(before, rate.parameters(), strict=True))


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40), st.floats(0, 1))
def test_quantile_rule_equals_numpys(values, epsilon):
    e = torch.tensor(values, dtype=torch.float64)
    expected = np.quantile(np.abs(values), 1 - epsilon)
    c = quantile_threshold(e, epsilon).item()
    assert c > 0
    if expected > 1e-12 * np.abs(values).max():
        assert c == pytest.approx(expected, rel=1e-9)


def test_threshold_without_spread_is_still_positive():
    assert quantile_threshold(torch.zeros(5), 0.05) == 1.0
    spike = torch.zeros(100, dtype=torch.float64)
    spike[3] = 7.0
    w = InverseMultiquadric()(spike, spike.unsqueeze(-1), NOISE)
    assert w[3] < 1e-10  # the limit of ever smaller thresholds: only the spike is distrusted
    assert (w[torch.arange(100) != 3] == 1).all()


def test_thresholds_support_batches():
    e = torch.randn(2, 3, 50, dtype=torch.float64)
    x, noise = torch.zeros(2, 3, 50, 1, dtype=torch.float64), torch.rand(2, 3, dtype=torch.float64)
    for weight in (InverseMultiquadric(), InverseMultiquadric(c=0.5), InverseMultiquadric().frozen(e)):
        w, slope = weight(e, x, noise), weight.slope(e, x, noise)
        assert w.shape == slope.shape == e.shape
    torch.testing.assert_close(InverseMultiquadric().frozen(e)(e, x, noise), InverseMultiquadric()(e, x, noise))


def test_frozen_threshold_does_not_follow_the_residuals():
    e, x = points()
    frozen = Product(OneSided(InverseMultiquadric(), "above"), SquaredExponential()).frozen(e)
    torch.testing.assert_close(frozen(10 * e, x, NOISE)[:1], frozen(10 * e[:1], x[:1], NOISE))


def test_trainable_threshold_starts_from_the_rule():
    X, y = torch.randn(30, 1, dtype=torch.float64), torch.randn(30, dtype=torch.float64)
    model = RCGP(X, y, weight=InverseMultiquadric(trainable=True))
    torch.testing.assert_close(model.hyperparameters()["weight.c"], (y - y.mean()).abs().quantile(0.95))
    RCGP(X, 100 * y, weight=model.weight)  # a weight that is used again starts from the new data
    torch.testing.assert_close(model.hyperparameters()["weight.c"], 100 * (y - y.mean()).abs().quantile(0.95))
    with pytest.raises(RuntimeError, match="give the weight to a model"):
        InverseMultiquadric(trainable=True)(y, X, NOISE)
    fixed = RCGP(X, y, weight=InverseMultiquadric(c=2.5, trainable=True))
    assert fixed.hyperparameters()["weight.c"].item() == pytest.approx(2.5)


@pytest.mark.parametrize(
    "arguments", [{"c": 0.0}, {"c": -1.0}, {"c": float("nan")}, {"c": "a"}, {"epsilon": 1.5}, {"epsilon": -0.1}]
)
def test_invalid_thresholds_raise(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        InverseMultiquadric(**arguments)


def test_weight_without_forward_raises():
    with pytest.raises(NotImplementedError, match="forward"):
        WeightFunction()(*points(), NOISE)


def test_constant_user_weight_has_slope_zero():
    class Half(WeightFunction):
        def forward(self, residual, inputs, noise):
            return torch.full_like(residual, 0.5)

    e, x = points()
    assert (Half().slope(e, x, NOISE) == 0).all()


def test_a_noise_rate_that_cannot_be_copied_is_shared():
    class Locked:
        def __init__(self):
            self.lock = threading.Lock()

        def __call__(self, x):
            return 1 + x[..., 0]

    e, x = points()
    weight = Heteroskedastic(Locked())
    assert torch.equal(copy.deepcopy(weight)(e, x, NOISE), weight(e, x, NOISE))


@pytest.mark.parametrize("name", EXAMPLES)
def test_weights_can_be_copied_and_printed(name):
    weight = EXAMPLES[name]()
    e, x = points()
    assert torch.equal(copy.deepcopy(weight)(e, x, NOISE), weight(e, x, NOISE))
    assert type(weight).__name__ in repr(weight)
