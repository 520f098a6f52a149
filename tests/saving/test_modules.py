from __future__ import annotations

import copy
import inspect
import itertools
import math
import pickle

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch import constraints, kernels, means, priors
from torch import nn

import rcgp.weights
from rcgp import RCGP, fit
from rcgp.models.coregion import CoregionKernel
from rcgp.models.defaults import Between, above
from rcgp.models.means import CallableMean, OutputMeans, PolynomialMean
from rcgp.saving import SavedModelError, describe, read_archive, rebuild, write_archive
from rcgp.saving.archive import raw_bytes
from rcgp.saving.recipes import CONSTRAINTS, PRIORS, RECIPES, TRANSFORMS
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
    WeightFunction,
)

LAW = NoiseLaw((0.7 / 3.0, 0.4, 0.05, 0.05), 1.0 - 0.7 / 3.0 - 0.4 - 0.1, 0.1 + 0.2)
RESIDUAL = torch.tensor([0.1, -3.0, 7.0, 0.0, 1e4], dtype=torch.float64)


def data(n=7, d=3):
    random = np.random.default_rng(0)
    return torch.tensor(random.uniform(-2, 2, (n, d))), torch.tensor(random.standard_normal(n))


def started(weight):
    weight.initialise(RESIDUAL)
    return weight


def fixed(kernel):
    return kernel.requires_grad_(False)


def scaled_with_own_columns():
    kernel = kernels.ScaleKernel(kernels.RBFKernel(active_dims=(1, 2)))
    kernel.active_dims = None
    return kernel


def twice(kernel):
    return kernels.AdditiveKernel(kernel, kernels.ProductKernel(kernel, kernels.LinearKernel()))


def polynomial(name):
    return RCGP(*data(), mean=name).mean


def with_prior(kernel, name, prior):
    kernel.register_prior(name, prior, name.removesuffix("_prior"))
    return kernel


KERNELS = [
    lambda: kernels.RBFKernel(),
    lambda: kernels.RBFKernel(ard_num_dims=3),
    lambda: kernels.RBFKernel(ard_num_dims=2, active_dims=(2, 0)),
    lambda: kernels.RBFKernel(ard_num_dims=np.int64(3)),
    lambda: fixed(kernels.RBFKernel()),
    lambda: kernels.MaternKernel(nu=0.5),
    lambda: kernels.MaternKernel(nu=1.5, ard_num_dims=3),
    lambda: kernels.MaternKernel(),
    lambda: kernels.RQKernel(ard_num_dims=3),
    lambda: kernels.PeriodicKernel(),
    lambda: kernels.PeriodicKernel(ard_num_dims=3),
    lambda: kernels.CosineKernel(ard_num_dims=3),
    lambda: kernels.LinearKernel(),
    lambda: kernels.LinearKernel(ard_num_dims=3),
    lambda: kernels.PolynomialKernel(power=3),
    lambda: kernels.PolynomialKernel(power=torch.tensor(2.0)),
    lambda: kernels.PiecewisePolynomialKernel(q=1, ard_num_dims=3),
    lambda: kernels.ConstantKernel(),
    lambda: kernels.SpectralMixtureKernel(num_mixtures=4, ard_num_dims=3),
    lambda: kernels.ScaleKernel(kernels.RBFKernel(active_dims=torch.tensor([1]))),
    lambda: scaled_with_own_columns(),
    lambda: RCGP(*data()).kernel,
    lambda: kernels.RBFKernel() + kernels.LinearKernel(active_dims=(0,)),
    lambda: kernels.RBFKernel() * kernels.CosineKernel(),
    lambda: twice(kernels.ScaleKernel(kernels.RBFKernel())),
    lambda: kernels.ScaleKernel(
        kernels.ScaleKernel(kernels.MaternKernel() + kernels.ScaleKernel(kernels.PeriodicKernel())) * kernels.RQKernel()
    ),
    lambda: kernels.AdditiveKernel(*(kernels.ScaleKernel(kernels.RBFKernel()) for _ in range(12))),
]

CONSTRAINED = [
    lambda: constraints.Positive(),
    lambda: constraints.Positive(transform=torch.exp, inv_transform=torch.log),
    lambda: constraints.Positive(transform=nn.functional.softplus),
    lambda: constraints.GreaterThan(1e-4),
    lambda: constraints.GreaterThan(1e-4, transform=None),
    lambda: constraints.GreaterThan(torch.tensor([[0.1, 0.2, 0.3]])),
    lambda: constraints.GreaterThan(0.1, initial_value=0.7),
    lambda: above(1e-12 / 3),
    lambda: copy.deepcopy(constraints.GreaterThan(0.5)),
    lambda: constraints.LessThan(7.1),
    lambda: constraints.Interval(0.1, 3.3),
    lambda: constraints.Interval(0.1, 3.3, transform=None, inv_transform=None),
    lambda: Between(1e-5 / 3, 1e5 / 3),
    lambda: Between(torch.full((1, 3), 0.1, dtype=torch.float64), 9.0),
]

PRIOR = [
    lambda: priors.GammaPrior(2.1, 0.3),
    lambda: priors.GammaPrior(torch.tensor([2.1, 1.0, 3.0]), torch.tensor([0.1, 0.2, 0.3])),
    lambda: priors.LogNormalPrior(0.1, 1.3),
    lambda: priors.LogNormalPrior(torch.full((1, 3), 0.1, dtype=torch.float64), 1.3),
    lambda: priors.NormalPrior(0.1, 1.3),
    lambda: priors.HalfNormalPrior(1.3),
    lambda: priors.HalfCauchyPrior(1.3),
    lambda: priors.UniformPrior(0.1, 100.3),
    lambda: priors.SmoothedBoxPrior(0.1, 2.3, sigma=0.07),
    lambda: priors.SmoothedBoxPrior(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1.1, 1.2, 1.3])),
]

MEANS = [
    lambda: means.ZeroMean(),
    lambda: means.ConstantMean(),
    lambda: means.ConstantMean(constant_prior=priors.NormalPrior(0.0, 2.0)),
    lambda: means.ConstantMean(constant_constraint=constraints.Interval(-1.0, 2.0)),
    lambda: means.LinearMean(3),
    lambda: means.LinearMean(3, bias=False),
    lambda: with_prior(means.LinearMean(3), "weights_prior", priors.NormalPrior(0.0, 1.0)),
    *(lambda name=name: polynomial(name) for name in ("zero", "constant", "median", "linear", "quadratic")),
]

WEIGHTS = [
    lambda: Constant(),
    lambda: InverseMultiquadric(),
    lambda: InverseMultiquadric(epsilon=0),
    lambda: InverseMultiquadric(c=0.1 + 0.2, epsilon=0.1),
    lambda: InverseMultiquadric(c=2.0, trainable=True),
    lambda: started(InverseMultiquadric(trainable=True)),
    lambda: InverseMultiquadric(epsilon=0.3).frozen(RESIDUAL),
    lambda: SquaredExponential(c=3.0),
    lambda: LawWeight(LAW, RESIDUAL / 3.0, RESIDUAL.abs() + 0.1),
    lambda: LawWeight(LAW, RESIDUAL / 3.0, RESIDUAL.abs() + 0.1, 1.0 / (RESIDUAL.abs() + 0.2)),
    lambda: LawWeight(LAW, RESIDUAL / 3.0, RESIDUAL.abs() + 0.1, None, RESIDUAL.abs() + 0.3),
    lambda: LawWeight(NoiseLaw.normal(), RESIDUAL / 3.0, RESIDUAL.abs() + 0.1),
    lambda: OneSided(SquaredExponential(), "below"),
    lambda: NoShrinkage(InverseMultiquadric(1.5)),
    lambda: NoNoiseTerm(OneSided(InverseMultiquadric(1.5), "above")),
    lambda: Product(InverseMultiquadric(c=2.0, trainable=True), OneSided(SquaredExponential(), "above"), Constant()),
]


def check_round_trip(module, tmp_path):
    """The conformance test: through a file and back, a module is the same in every respect that this room knows of."""
    path = tmp_path / "m"
    write_archive(path, *describe(module))
    restored = rebuild(*read_archive(path))
    assert type(restored) is type(module)
    old, new = module.state_dict(), restored.state_dict()
    assert old.keys() == new.keys()
    for name, value in old.items():
        assert (value.dtype, value.shape, raw_bytes(value)) == (new[name].dtype, new[name].shape, raw_bytes(new[name]))
    assert {name: p.requires_grad for name, p in module.named_parameters()} == {
        name: p.requires_grad for name, p in restored.named_parameters()
    }
    for name, part in module.named_modules():
        twin = restored.get_submodule(name)
        assert type(twin) is type(part)
        assert getattr(twin, "enforced", None) == getattr(part, "enforced", None)
    first, second = (dict_of(describe(each)) for each in (module, restored))
    assert first == second
    assert {p.data_ptr() for p in module.parameters()}.isdisjoint(p.data_ptr() for p in restored.parameters())
    pickle.loads(pickle.dumps(restored))
    return restored


def dict_of(described):
    description, tensors = described
    return description, {name: (str(value.dtype), raw_bytes(value)) for name, value in tensors.items()}


def check_same_kernel(kernel, restored, dtype):
    X = data()[0].to(dtype)
    Z = X[:3] + 0.1
    with torch.no_grad():
        for arguments in ((X,), (X, Z)):
            old, new = kernel(*arguments).to_dense(), restored(*arguments).to_dense()
            assert old.dtype == new.dtype
            assert raw_bytes(old) == raw_bytes(new)
        assert raw_bytes(kernel(X, diag=True)) == raw_bytes(restored(X, diag=True))


def scrambled(module, dtype):
    """The module with values that no constructor gives, in another precision."""
    module.to(dtype)
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(torch.linspace(-0.7, 0.9, parameter.numel()).reshape(parameter.shape) + 0.1 * i)
    return module


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("make", KERNELS)
def test_kernels_are_restored_exactly(make, dtype, tmp_path):
    kernel = scrambled(make(), dtype)
    check_same_kernel(kernel, check_round_trip(kernel, tmp_path), dtype)


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("make", CONSTRAINED)
def test_constraints_are_restored_exactly(make, dtype, tmp_path):
    kernel = kernels.RBFKernel(ard_num_dims=3, lengthscale_constraint=make())
    if dtype is not None:  # else the bounds may be of another type than the parameter
        scrambled(kernel, dtype)
    restored = check_round_trip(kernel, tmp_path)
    old, new = kernel.raw_lengthscale_constraint, restored.raw_lengthscale_constraint
    raw = torch.linspace(-3, 2, 3).reshape(1, 3).to(kernel.raw_lengthscale)
    assert raw_bytes(old.transform(raw)) == raw_bytes(new.transform(raw))
    value = old.transform(raw)
    assert raw_bytes(old.inverse_transform(value)) == raw_bytes(new.inverse_transform(value))
    assert raw_bytes(kernel.lengthscale) == raw_bytes(restored.lengthscale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("make", PRIOR)
def test_priors_are_restored_with_the_same_density(make, dtype, tmp_path):
    kernel = scrambled(kernels.RBFKernel(ard_num_dims=3, lengthscale_prior=make()), dtype)
    restored = check_round_trip(kernel, tmp_path)
    densities = []
    for module in (kernel, restored):
        ((name, owner, prior, closure, set_to),) = list(module.named_priors())
        assert name == "lengthscale_prior"
        densities.append(prior.log_prob(closure(owner)))
        set_to(owner, torch.full((1, 3), 0.5, dtype=dtype))
        torch.testing.assert_close(owner.lengthscale, torch.full((1, 3), 0.5, dtype=dtype))
    assert raw_bytes(densities[0]) == raw_bytes(densities[1])
    assert densities[0].isfinite().all()


def test_priors_on_every_parameter_are_restored(tmp_path):
    kernel = kernels.AdditiveKernel(
        kernels.ScaleKernel(
            kernels.PeriodicKernel(
                lengthscale_prior=priors.GammaPrior(2.0, 1.0), period_length_prior=priors.LogNormalPrior(0.0, 1.0)
            ),
            outputscale_prior=priors.HalfCauchyPrior(1.0),
        ),
        kernels.CosineKernel(period_length_prior=priors.GammaPrior(2.0, 1.0)),
        kernels.LinearKernel(variance_prior=priors.GammaPrior(2.0, 1.0)),
        kernels.PolynomialKernel(power=2, offset_prior=priors.GammaPrior(2.0, 1.0)),
        kernels.ConstantKernel(constant_prior=priors.GammaPrior(2.0, 1.0)),
        with_prior(kernels.RQKernel(), "alpha_prior", priors.GammaPrior(2.0, 1.0)),
        with_prior(kernels.RBFKernel(), "raw_lengthscale_prior", priors.NormalPrior(0.0, 1.0)),
    )
    restored = check_round_trip(kernel, tmp_path)
    old, new = (
        [(name, prior.log_prob(c(m)).sum()) for name, m, prior, c, _ in k.named_priors()] for k in (kernel, restored)
    )
    assert old == new
    assert len(old) == 9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("make", MEANS)
def test_means_are_restored_exactly(make, dtype, tmp_path):
    mean = scrambled(make(), dtype)
    restored = check_round_trip(mean, tmp_path)
    X = data()[0].to(dtype)
    assert raw_bytes(mean(X)) == raw_bytes(restored(X))


@pytest.mark.parametrize("make", WEIGHTS)
def test_weights_are_restored_exactly(make, tmp_path):
    weight = make()
    restored = check_round_trip(weight, tmp_path)
    arguments = RESIDUAL, torch.zeros(5, 1, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64)
    assert raw_bytes(weight(*arguments)) == raw_bytes(restored(*arguments))
    assert raw_bytes(weight.slope(*arguments)) == raw_bytes(restored.slope(*arguments))
    assert repr(weight) == repr(restored)


def test_an_uninitialised_trainable_threshold_is_restored(tmp_path):
    weight = InverseMultiquadric(trainable=True)
    restored = check_round_trip(weight, tmp_path)
    assert restored.log_c.isnan()
    assert raw_bytes(started(restored).log_c) == raw_bytes(started(weight).log_c)


OUTPUTS = [
    lambda: CoregionKernel.of([kernels.RBFKernel(ard_num_dims=2), kernels.MaternKernel()], 3, 2),
    lambda: with_prior(
        CoregionKernel.of([kernels.RBFKernel()], 2, 1), "output_variance_prior", priors.LogNormalPrior(0.1, 1.0)
    ),
    lambda: OutputMeans([polynomial("median"), means.ZeroMean()]),
    lambda: ByOutput(Constant(), LawWeight(LAW, RESIDUAL, RESIDUAL.abs() + 0.1)),
]


@pytest.mark.parametrize("make", OUTPUTS)
def test_modules_of_several_outputs_are_restored(make, tmp_path):
    module = make()
    restored = check_round_trip(module, tmp_path)
    inputs = torch.cat([data()[0], torch.arange(7.0).remainder(2.0).unsqueeze(-1)], dim=-1).to(torch.float64)
    if isinstance(module, CoregionKernel):
        x = inputs[:, 1:]  # as many columns as its kernels have
        assert torch.equal(module(x).to_dense(), restored(x).to_dense())
        assert list(module._priors) == list(restored._priors)


def test_a_kernel_of_outputs_without_its_index_kernels_raises():
    description, tensors = describe(CoregionKernel.of([kernels.RBFKernel(), kernels.RBFKernel()], 2, 1))
    description["parts"] = description["parts"][:3]
    kept = {name: value for name, value in tensors.items() if not name.startswith("parts.3")}
    with pytest.raises(SavedModelError, match="an index kernel for each of its kernels"):
        rebuild(description, kept)


def test_every_class_in_the_tables_has_a_round_trip_test():
    tested = set()
    for make in (*KERNELS, *MEANS, *WEIGHTS, *OUTPUTS):
        tested |= {type(part).__name__ for part in make().modules()}
    assert RECIPES.keys() <= tested
    assert {type(make()).__name__ for make in CONSTRAINED} == CONSTRAINTS.keys()
    assert {type(make()).__name__ for make in PRIOR} == PRIORS.keys()
    transforms = [constraint["transform"] for make in CONSTRAINED for constraint in described_constraints(make())]
    assert set(transforms) == {*TRANSFORMS, None}


def described_constraints(constraint):
    return describe(kernels.RBFKernel(ard_num_dims=3, lengthscale_constraint=constraint))[0]["constraints"].values()


def test_every_weight_function_and_mean_is_saved_or_listed_as_an_exception():
    def concrete(module, base):
        classes = [value for value in vars(module).values() if inspect.isclass(value) and issubclass(value, base)]
        return {cls for cls in classes if cls.forward is not base.forward and cls.__module__.startswith("rcgp")}

    weights = concrete(rcgp.weights, WeightFunction)
    assert {cls for cls in weights if cls.__name__ not in RECIPES} == {Heteroskedastic}
    defined = concrete(rcgp.models.means, gpytorch.means.Mean)
    assert {cls for cls in defined if cls.__name__ not in RECIPES} == {CallableMean}
    assert len(weights) == 10
    assert len(defined) == 3


def test_a_kernel_in_two_places_is_one_kernel_again(tmp_path):
    shared = kernels.ScaleKernel(kernels.RBFKernel(lengthscale_prior=priors.GammaPrior(2.0, 1.0)))
    kernel = twice(shared)
    restored = check_round_trip(kernel, tmp_path)
    assert restored.kernels[0] is restored.kernels[1].kernels[0]
    assert len(list(restored.parameters())) == len(list(kernel.parameters())) == 3
    restored.kernels[0].outputscale = 5.0
    assert float(restored.kernels[1].kernels[0].outputscale.detach()) == pytest.approx(5.0)


def test_parameters_shared_between_kernels_keep_their_values(tmp_path):
    first, second = kernels.RBFKernel(), kernels.MaternKernel()
    second.raw_lengthscale = first.raw_lengthscale
    kernel = first + second
    write_archive(tmp_path / "m", *describe(kernel))
    check_same_kernel(kernel, rebuild(*read_archive(tmp_path / "m")), torch.float32)


def test_a_fitted_model_predicts_the_same_from_its_saved_parts(tmp_path):
    X, y = data(n=30)
    kernel = kernels.ScaleKernel(kernels.MaternKernel(ard_num_dims=3, lengthscale_prior=priors.GammaPrior(3.0, 6.0)))
    model = RCGP(X, y, kernel=kernel, weight=InverseMultiquadric(), mean="linear")
    fit(model)
    parts = [check_round_trip(part, tmp_path) for part in (model.kernel, model.mean, model.weight)]
    twin = RCGP(X, y, kernel=parts[0], mean=parts[1], weight=parts[2])
    with torch.no_grad():
        twin.raw_noise.copy_(model.raw_noise)
        twin.raw_noise_constraint.lower_bound = model.raw_noise_constraint.lower_bound
    old, new = model.posterior(X + 0.1), twin.posterior(X + 0.1)
    assert raw_bytes(old.mean) == raw_bytes(new.mean)
    assert raw_bytes(old.variance) == raw_bytes(new.variance)


def test_describing_and_loading_have_no_side_effects(tmp_path):
    mean = means.LinearMean(3)
    before, state = copy.deepcopy(mean), torch.random.get_rng_state()
    description, tensors = describe(mean)
    restored = rebuild(description, tensors)
    with torch.no_grad():
        restored.weights.zero_()
    assert raw_bytes(tensors["weights"]) == raw_bytes(before.weights)
    tensors["weights"].zero_()
    assert raw_bytes(mean.weights) == raw_bytes(before.weights)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_names_of_tensors_are_those_of_state_dict():
    kernel = kernels.ScaleKernel(kernels.RBFKernel(active_dims=(0,)) + kernels.RQKernel())
    assert describe(kernel)[1].keys() == kernel.state_dict().keys()


# --- refusals


class OwnKernel(kernels.RBFKernel):
    pass


class OwnWeight(WeightFunction):
    def forward(self, residual, inputs, noise):
        return torch.ones_like(residual)


class OwnPrior(priors.GammaPrior):
    pass


class OwnConstraint(constraints.Positive):
    pass


class RBFKernel(kernels.RBFKernel):
    """Of the name of a class that can be saved."""


def unsaveable():
    extra = kernels.RBFKernel()
    extra.register_parameter("extra", nn.Parameter(torch.zeros(1)))
    hooked = kernels.RBFKernel()
    hooked.register_prior("lengthscale_prior", priors.GammaPrior(1.0, 1.0), lambda m: m.lengthscale.sqrt())
    swapped = kernels.PeriodicKernel()
    swapped.register_prior("lengthscale_prior", priors.GammaPrior(1.0, 1.0), lambda m: m.period_length)
    renamed = kernels.RBFKernel()
    renamed.register_prior("belief", priors.GammaPrior(1.0, 1.0), "lengthscale")
    failing = kernels.RBFKernel()
    failing.register_prior("lengthscale_prior", priors.GammaPrior(1.0, 1.0), lambda m: m.nothing)
    rank = InverseMultiquadric().frozen(RESIDUAL.repeat(2, 1))
    changed = kernels.RBFKernel() + kernels.LinearKernel()
    changed.ard_num_dims = 3
    return [
        (OwnKernel(), r"^the kernel: OwnKernel cannot be saved.*code is not saved; what can be: RBFKernel, Matern"),
        (kernels.ScaleKernel(OwnKernel()), r"^the kernel's part base_kernel: OwnKernel cannot be saved"),
        (kernels.RBFKernel() + kernels.ScaleKernel(OwnKernel()), r"part kernels.1.base_kernel: OwnKernel"),
        (RBFKernel(), r"^the kernel: RBFKernel cannot be saved"),
        (kernels.RFFKernel(3), r"^the kernel: RFFKernel cannot be saved: what can be: RBFKernel"),
        (kernels.MultitaskKernel(kernels.RBFKernel(), 2), r"MultitaskKernel cannot be saved: outputs are correlated"),
        (kernels.RBFKernel(batch_shape=torch.Size([2])), r"batch shape"),
        (means.ConstantMean(batch_shape=torch.Size([2])), r"batch shape"),
        (means.LinearMean(3, batch_shape=torch.Size([2])), r"weights must have shape \(3, 1\)"),
        (rank, r"log_c must have shape \(\)"),
        (kernels.RBFKernel(lengthscale_constraint=OwnConstraint()), r"raw_lengthscale_constraint: OwnConstraint"),
        (with_transform(torch.square, torch.sqrt), r"a function is code"),
        (with_transform(torch.exp, torch.sqrt), r"a function is code"),
        (with_transform(nn.Softplus(beta=2), constraints.Positive()._inv_transform), r"a function is code"),
        (kernels.RBFKernel(lengthscale_prior=OwnPrior(1.0, 1.0)), r"lengthscale_prior: OwnPrior"),
        (kernels.RBFKernel(lengthscale_prior=priors.HorseshoePrior(0.1)), r"HorseshoePrior.*priors that can be are"),
        (kernels.RBFKernel(lengthscale_prior=priors.GammaPrior(1.0, 1.0, transform=torch.exp)), r"its transform"),
        (hooked, r"its closure is code"),
        (swapped, r"its closure is code"),
        (renamed, r"its closure is code"),
        (failing, r"its closure is code"),
        (extra, r"^the kernel cannot be saved: extra is not as its class has it"),
        (changed, r"^the kernel cannot be saved: ard_num_dims is not as its class has it"),
        (kernels.PolynomialKernel(power=math.inf), r"power of PolynomialKernel must be a finite number"),
        (kernels.AdditiveKernel(), r"AdditiveKernel does not have \[\] as its parts"),
        (
            CallableMean(lambda x: x[..., 0], data()[0]),
            r"^the mean: CallableMean.*your own functions .* are code, and code is not",
        ),
        (
            Heteroskedastic(lambda x: x[..., 0]),
            r"^the weight: Heteroskedastic.*your own functions .* are code, and code is not",
        ),
        (Product(Constant(), OneSided(OwnWeight(), "above")), r"^the weight's part weights.1.weight: OwnWeight"),
        (rcgp.weights.ThresholdWeight(1.0), r"^the weight: ThresholdWeight"),
        (nn.Linear(1, 1), r"neither a kernel nor a mean nor a weight"),
        (nested(3000), r"nested too deeply"),
    ]


def with_transform(transform, inverse):
    return kernels.RBFKernel(lengthscale_constraint=constraints.Positive(transform, inverse))


def nested(depth):
    weight = Constant()
    for _ in range(depth):
        weight = NoShrinkage(weight)
    return weight


@pytest.mark.parametrize(("module", "message"), unsaveable(), ids=itertools.count())
def test_code_and_unusual_parts_raise_and_are_named(module, message):
    with pytest.raises(SavedModelError, match=message) as caught:
        describe(module)
    assert "\n" not in str(caught.value)


def test_polynomial_means_are_rebuilt_without_their_data():
    restored = rebuild(*describe(polynomial("quadratic")))
    assert isinstance(restored, PolynomialMean)
    assert restored.coefficients.shape == (10,)
