"""The robust conjugate GP as a module: it owns the data, the kernel, the mean, the weight function and the noise.

It holds no mathematics: :meth:`RCGP.training_terms` gives plain tensors, and :mod:`rcgp.core` computes with them.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, SupportsIndex

import gpytorch
import numpy as np
import torch
from torch import Tensor

from rcgp.core.exact import ExactPosterior, LeaveOneOut, condition, influence, leave_one_out, signal_evidence
from rcgp.core.pseudo import PseudoData, pseudo_data
from rcgp.core.sparse import SparsePosterior
from rcgp.models.defaults import (
    NOISE_FLOOR,
    above,
    default_kernel,
    longest_lengthscale,
    nearest_by_columns,
    robust_scales,
    robust_spread,
    typical_gap,
    varying_columns,
)
from rcgp.models.kernel_matrix import correlations, kernel_matrix
from rcgp.models.local_noise import LocalFactor, NoiseAverage, averages_by_kernel
from rcgp.models.means import MeanLike, build_mean
from rcgp.models.noise import NoisyModel
from rcgp.models.posterior import PosteriorKernel, PosteriorNormal, PosteriorProcess, plain_attributes, same
from rcgp.models.validation import (
    as_real_tensor,
    check_kernel,
    check_per_row,
    check_sample_weight,
    check_test_inputs,
    check_training_data,
    check_variance,
)
from rcgp.weights import InverseMultiquadric, LawWeight, ThresholdWeight, WeightFunction

__all__ = ["MANY_ROWS", "RCGP", "START_ROWS", "TrainingTerms", "posterior_influence"]

#: A fit of at least the second number of rows tries its starts on the first number of them: at most a third of the
#: cost. On 125 rows errors begin to grow.
START_ROWS, MANY_ROWS = 250, 375


@dataclass(frozen=True)
class TrainingTerms:
    """Residuals, weights and pseudo-data: with the kernel matrix, the arguments of every objective.

    Attributes:
        residual: ``n`` residuals e = y − m(x).
        weight: ``n`` weights w̃.
        slope: ``n`` slopes ∂_y log w̃².
        noise: noise variance σ², a scalar; for several outputs one for each.
        row_noise: noise variance σ²/p of each observation, ``n``, or a scalar without sample weights p.
        pseudo: pseudo-data of the above.
    """

    residual: Tensor
    weight: Tensor
    slope: Tensor
    noise: Tensor
    row_noise: Tensor
    pseudo: PseudoData


class RCGP(NoisyModel):
    """Robust and conjugate Gaussian process regression (Altamirano, Briol and Knoblauch, 2024).

    The posterior of an ordinary GP with kernel k, mean m and noise variance σ², but each observation has a
    weight w̃(x, y) that vanishes for outlying y, so that no observation has unbounded influence::

        f(x*) | data ~ N( m* + k*ᵀ (K + σ²W̃⁻²)⁻¹ z,   k** − k*ᵀ (K + σ²W̃⁻²)⁻¹ k* ),    z = y − m − σ² ∂_y log w̃²

    The model can predict at once; :func:`rcgp.fit` chooses the hyperparameters. There are no training and evaluation
    modes. Given modules are used without a copy, and cast to the type of the data. For float32 data predictions are
    float32 and factorisations float64.

    Args:
        train_X: ``n x d`` inputs.
        train_y: ``n`` observations. The model keeps copies of both.
        kernel: any GPyTorch kernel with one output. Default: squared exponential with a lengthscale for each input
            dimension that is not constant and an output scale, without priors, initialised at the scales of the data.
        mean: prior mean m, on which the weights are centred: ``"zero"``, ``"constant"`` (sample mean), ``"median"``,
            ``"linear"``, ``"quadratic"`` (least squares, fitted once), ``"robust_linear"`` (Huber, fitted once), a
            callable from ``... x n x d`` to ``... x n``, or a GPyTorch ``Mean``, whose parameters are then fitted too.
        weight: a weight function of :mod:`rcgp.weights`. Default: ``InverseMultiquadric()``.
        noise: initial value of the noise variance σ². Default: a tenth of the squared robust spread of y − m.
            To hold it fixed in a fit: ``model.raw_noise.requires_grad_(False)``. Its lower bound is 1e-12 times
            that squared spread, or times the initial value if smaller, so that data without noise do not drive it to 0.
        sample_weight: ``n`` positive factors p on the precision of each row: row i has the noise variance σ²/p_i, as
            the mean of p_i measurements has. Multiplying all by a number multiplies σ² by it and changes nothing else.

    Raises:
        ValueError: for NaN, infinite, empty or mismatched data, naming the argument and the first bad row.

    Example:
        >>> X = torch.linspace(0, 6, 40, dtype=torch.float64).unsqueeze(-1)
        >>> y = torch.sin(X.squeeze(-1))
        >>> y[10] = 25.0
        >>> model = RCGP(X, y)
        >>> int(model.weights().argmin())
        10
    """

    #: Whether an evaluation costs O(n).
    linear_cost: ClassVar[bool] = False

    #: Whether a robust fit may let the noise differ from place to place, by :meth:`noise_averages`.
    has_local_noise: ClassVar[bool] = True

    def __init__(
        self,
        train_X: Tensor,
        train_y: Tensor,
        *,
        kernel: gpytorch.kernels.Kernel | None = None,
        mean: MeanLike = "constant",
        weight: WeightFunction | None = None,
        noise: float | None = None,
        sample_weight: Tensor | None = None,
    ) -> None:
        X, y = check_training_data(train_X, train_y)
        precision = None if sample_weight is None else check_sample_weight(sample_weight, X)
        if kernel is not None and not isinstance(kernel, gpytorch.kernels.Kernel):
            raise TypeError(f"kernel must be a GPyTorch kernel, got {type(kernel).__name__}")
        if weight is not None and not isinstance(weight, WeightFunction):
            raise TypeError(f"weight must be a WeightFunction of rcgp.weights, got {type(weight).__name__}")
        super().__init__()
        self.register_buffer("train_X", X, persistent=False)
        self.register_buffer("train_y", y, persistent=False)
        self.register_buffer("sample_weight", precision, persistent=False)
        self.mean = build_mean(mean, X, y).to(X)
        with torch.no_grad():
            check_per_row(self.mean(X), X, "mean")
            residual = self.residual()
        if kernel is None:  # constant columns carry no information: the fit is the same with and without them
            kernel = default_kernel(robust_scales(X), robust_spread(residual), varying_columns(X))
        self.kernel = kernel
        self.weight = InverseMultiquadric() if weight is None else weight
        unit = self.noise_unit()
        start = 0.1 * unit if noise is None else check_variance(noise, unit)
        self.register_parameter("raw_noise", torch.nn.Parameter(torch.zeros_like(unit)))
        self.register_constraint("raw_noise", above(NOISE_FLOOR * torch.minimum(unit, start)))
        self.to(X)
        self.noise = start
        for rows, part in zip(self.output_rows(), self.output_weights(), strict=True):
            part.initialise(residual[rows])
        with torch.no_grad():
            weights = self.weight(residual, X, self.noise)
        check_per_row(weights, X, "weight", least=0.0)
        check_kernel(self.kernel, X)
        #: Factor h(x) on the noise variance, if a robust fit found local noise.
        self.local_noise: LocalFactor | None = None
        # State of the model at the last posterior, as modules and tensors, and that posterior.
        self._process: tuple[list[Any], list[Tensor], PosteriorProcess] | None = None

    def training_terms(self) -> TrainingTerms:
        """Residuals, weights and pseudo-data at the current hyperparameters, differentiable in them. Cost O(nd)."""
        e, noise, row_noise = self.residual(), self.noise, self.row_noise()
        w = self.weight(e, self.train_X, noise)
        slope = self.weight.slope(e, self.train_X, noise)
        return TrainingTerms(e, w, slope, noise, row_noise, pseudo_data(e, w, slope, row_noise))

    def kernel_matrix(self) -> Tensor:
        """Kernel matrix of the training inputs, ``n x n``, differentiable in the kernel's parameters. Cost O(n²)."""
        return kernel_matrix(self.kernel, self.train_X)

    def leave_one_out(self) -> LeaveOneOut:
        """Mean and variance of each observation y_i predicted from all other rows, each ``n``. Cost O(n³) for all.

        The prior mean and the threshold c are held fixed: they are not recomputed without y_i.
        """
        with torch.no_grad():
            model = self.in_float64()
            terms = model.training_terms()
            # Predictions use the same factorisation.
            given = None if self.linear_cost else self._posterior_process().given
            if isinstance(given, ExactPosterior):
                latent = given.leave_one_out(model.kernel_matrix(), terms.pseudo.target)
            else:
                latent = model.latent_leave_one_out(terms.pseudo)
            # Not y − e, which cancels for an outlier of 1e100.
            mean = latent.mean + model.mean(model.train_X)
            row_noise = terms.row_noise.expand_as(mean).clone()
            for rows, weight in zip(model.output_rows(), model.output_weights(), strict=True):
                if isinstance(weight, LawWeight):
                    row_noise[rows] *= weight.local * weight.law.variance
            variance = latent.variance + row_noise
            return LeaveOneOut(mean.to(self.train_y), variance.to(self.train_y))

    def latent_leave_one_out(self, pseudo: PseudoData) -> LeaveOneOut:
        """Leave-one-out moments of f(x_i), relative to the prior mean, each ``n``; differentiable. Cost O(n³)."""
        return leave_one_out(self.kernel_matrix(), pseudo)

    def signal_evidence(self, pseudo: PseudoData) -> Tensor:
        """ℓ, the part of the evidence of pseudo-data that involves the kernel; differentiable. Cost O(n³)."""
        return signal_evidence(self.kernel_matrix(), pseudo)

    def noise_averages(self) -> Sequence[Sequence[NoiseAverage]]:
        """Candidates for the average that local noise is, for each output. Cost O(n²)."""
        K = self.kernel_matrix()
        return [averages_by_kernel(self.kernel, self.train_X[rows], K[rows][:, rows]) for rows in self.output_rows()]

    def nearest_rows(self) -> Tensor:
        """Nearest training row of each row by the kernel's correlation, ``n``. Cost O(n²)."""
        return correlations(self.kernel_matrix()).fill_diagonal_(-torch.inf).argmax(dim=-1)

    def neighbours(self) -> tuple[Tensor, ...]:
        """Nearest row of each row by the kernel, and by the inputs: a fit may take rows apart that lie together."""
        near = self.nearest_rows()
        return (near, nearest_by_columns(self.train_X)) if type(self) is RCGP else (near,)

    def start_rows(self) -> Tensor | None:
        """Sample of many rows on which a fit tries its starts: every k-th by residual. ``None`` for all rows.

        It has the same share of outliers and the same noise, and does not depend on the order of the rows.
        """
        n = len(self.train_y)
        if n < MANY_ROWS:
            return None
        with torch.no_grad():
            residual = self.residual()
        keys = torch.cat([self.relative_noise().unsqueeze(-1), self.train_X, residual.unsqueeze(-1)], dim=-1)
        order = np.lexsort(keys.T.cpu().numpy())  # by residual first
        kept = np.linspace(0.0, n - 1.0, START_ROWS).round().astype(np.int64)
        return torch.from_numpy(order[kept]).to(self.train_X.device)

    def scaled_kernel(self) -> gpytorch.kernels.Kernel:
        """The part of the kernel whose lengthscales are scaled for the starts of a fit."""
        return self.kernel

    def typical_gap(self) -> float:
        """Median distance of a row from the nearest other one, in units of the kernel's longest lengthscale.

        Lengthscales that are shorter than the default ones count as these.
        """
        return typical_gap(self.train_X) / longest_lengthscale(self.kernel, self.train_X)

    def parameter_scales(self) -> dict[torch.nn.Parameter, Tensor]:
        """Typical size of each raw parameter that has units; the others have none."""
        return {}

    def in_float64(self) -> RCGP:
        """This model, or a copy in double precision if it is in single precision.

        A fitted noise variance may be a billionth of the prior variance: too small for a factorisation in float32.
        """
        return self if self.train_y.dtype == torch.float64 else copy.deepcopy(self).double()

    def posterior(self, test_X: Tensor, observation_noise: bool = False) -> PosteriorNormal:
        """Posterior of f, or of new observations, at test inputs.

        Differentiable in ``test_X``; hyperparameters are constants. The factorisation of the training data is kept
        until the state of the model changes.

        Args:
            test_X: ``... x q x d`` inputs.
            observation_noise: add the noise variance of an inlier: σ² or, with a learned noise law, that of the law
                at each input.

        Returns:
            A GPyTorch ``MultivariateNormal`` over ``q`` points. Cost n³/3 at the first call, then O(nq) for the mean;
            variances (in chunks) and covariances are computed when they are used, for n²q.
        """
        x = check_test_inputs(test_X, self.train_X)
        process = self._posterior_process()
        covariance = PosteriorKernel(process, x.dtype)(x)
        if observation_noise:
            covariance = covariance.add_diagonal(self.inlier_noise(x))
        return PosteriorNormal(process.mean(x), covariance)

    def forward(self, test_X: Tensor) -> PosteriorNormal:
        """``model(test_X)`` is ``model.posterior(test_X)``: there are no modes."""
        return self.posterior(test_X)

    def hyperparameters(self) -> dict[str, Tensor]:
        """Name and value of every parameter in its own units, and of every threshold c in force.

        ``kernel.base_kernel.lengthscale``, not the raw parameter of the optimiser.
        """
        values = {}
        for name, parameter, constraint in self.named_parameters_and_constraints():
            value = parameter.detach() if constraint is None else constraint.transform(parameter.detach())
            path, _, leaf = name.rpartition(".")
            values[f"{path}.{leaf.removeprefix('raw_')}".lstrip(".")] = value.clone()
        with torch.no_grad():
            residual = self.residual()
            names = {module: name for name, module in self.weight.named_modules(prefix="weight")}
            for rows, weight in zip(self.output_rows(), self.output_weights(), strict=True):
                for name, module in weight.named_modules(prefix=names[weight]):
                    if isinstance(module, ThresholdWeight):
                        values.pop(f"{name}.log_c", None)
                        values[f"{name}.c"] = module.threshold(residual[rows]).squeeze(-1)
        return values

    def listed_hyperparameters(self) -> dict[str, list[float]]:
        """:meth:`hyperparameters` as lists of numbers."""
        return {name: value.reshape(-1).tolist() for name, value in self.hyperparameters().items()}

    def _posterior_process(self) -> PosteriorProcess:
        """The posterior at the current hyperparameters, recomputed only if the state of the model has changed."""
        modules = [module for module in self.modules() if module is not self]
        # Attributes besides tensors, such as the smoothness of a Matérn kernel or a noise law.
        modules += [value for module in modules for value in sorted(plain_attributes(module))]
        # Outside inference mode: tensors made in it could not take part in later gradients.
        with torch.inference_mode(False), torch.no_grad():
            # Values are compared, not version counters: GPyTorch's setters write through .data, which those miss.
            # Mean and weights are evaluated, as they may be functions of something outside the model.
            tensors = [*self.parameters(), *self.buffers(), self.mean(self.train_X), self.weights()]
            if self._process is not None and same(self._process[0], modules, self._process[1], tensors):
                return self._process[2]
            model = self.in_float64()
            exact = model._condition()
            mean, kernel = (copy.deepcopy(module).requires_grad_(False) for module in (model.mean, model.kernel))
            process = PosteriorProcess(mean, kernel, model._support().clone(), exact)
            self._process = modules, [tensor.clone() for tensor in tensors], process
        return process

    def _support(self) -> Tensor:
        """The inputs that the posterior is expressed in: training inputs or inducing points."""
        return self.train_X

    def _condition(self) -> ExactPosterior | SparsePosterior:
        """The prior conditioned on the training data. Cost n³/3."""
        return condition(self.kernel_matrix(), self.training_terms().pseudo)

    def __getstate__(self) -> dict[str, Any]:
        # The posterior is recomputed, not pickled or copied.
        return {**self.__dict__, "_process": None}


def posterior_influence(model: RCGP, index: SupportsIndex, values: Any) -> Tensor:
    """The paper's PIF: KL divergence between the posteriors of f with y_index and with each value in its place.

    Hyperparameters, prior mean and threshold c are held fixed. Bounded for a robust weight, quadratic in the value
    for ``Constant`` and ``Heteroskedastic``. An infinite value gives the limit, which deletes the point for a robust
    weight.

    Args:
        model: the model.
        index: row of the observation in the training data.
        values: replacements for y_index, any shape.

    Returns:
        One divergence for each value. Cost O(n³), and O(1) for each value.
    """
    n = model.train_y.shape[0]
    if isinstance(index, bool) or not isinstance(index, SupportsIndex) or not -n <= operator.index(index) < n:
        raise IndexError(f"index must name one of the {n} training rows, got {index!r}")
    index = operator.index(index)
    y_new = as_real_tensor(values, "values").detach().to(model.train_y.device)
    if bool(y_new.isnan().any()):
        raise ValueError(f"values contains nan at position {tuple(y_new.isnan().nonzero()[0].tolist())}")
    dtype, model = model.train_y.dtype, model.in_float64()
    y_new = y_new.to(model.train_y)
    with torch.no_grad():
        terms = model.training_terms()
        cavity = model.latent_leave_one_out(terms.pseudo)
        before = PseudoData(terms.pseudo.target[index], terms.pseudo.root_precision[index])
        # The threshold rule depends on all residuals: hold the threshold at its value for the data.
        weight = model.weight_of_row(index)
        x = model.train_X[index]
        e = (y_new - (model.train_y - terms.residual)[index]).reshape(-1)
        inputs = x.expand(e.shape[0], -1)
        w, slope = weight(e, inputs, terms.noise), weight.slope(e, inputs, terms.noise)
        after = pseudo_data(e, w, slope, terms.row_noise.expand_as(terms.residual)[index])
        divergence = influence(cavity.mean[index], cavity.variance[index], before, after)
        return divergence.reshape(y_new.shape).to(dtype)
