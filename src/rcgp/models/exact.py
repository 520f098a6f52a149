"""The robust conjugate GP as a module: it owns the data, the kernel, the mean, the weight function and the noise.

It holds no mathematics. Its pieces become plain tensors in :meth:`RCGP.training_terms`, the core does the rest.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import gpytorch
import torch
from torch import Tensor

from rcgp.core.exact import condition
from rcgp.core.loo import LeaveOneOut, leave_one_out
from rcgp.core.pseudo import PseudoData, pseudo_data
from rcgp.models.kernel_matrix import kernel_matrix
from rcgp.models.means import MeanLike, build_mean
from rcgp.models.posterior import PosteriorKernel, PosteriorNormal, PosteriorProcess
from rcgp.models.validation import check_test_inputs, check_training_data
from rcgp.weights import InverseMultiquadric, WeightFunction

__all__ = ["RCGP", "TrainingTerms"]

# Data without noise, or without any variation, would drive a fitted σ² to zero; it stops at this share of the squared
# spread of the data, or of the starting value if that is smaller.
_NOISE_FLOOR = 1e-12


@dataclass(frozen=True)
class TrainingTerms:
    """What the hyperparameters make of the training data; every objective is a function of these.

    Attributes:
        K: ``n x n`` kernel matrix.
        residual: ``n`` residuals e = y − m(x).
        weight: ``n`` weights w̃.
        slope: ``n`` slopes ∂_y log w̃².
        noise: noise variance σ², a scalar.
        pseudo: pseudo-data made from the above.
    """

    K: Tensor
    residual: Tensor
    weight: Tensor
    slope: Tensor
    noise: Tensor
    pseudo: PseudoData


class RCGP(gpytorch.Module):  # type: ignore[misc]
    """Robust and conjugate Gaussian process regression (Altamirano, Briol and Knoblauch, 2024).

    The posterior of an ordinary GP with kernel k, mean m and noise variance σ², but each observation counts with a
    weight w̃(x, y) that vanishes for outlying y, so that no observation has unbounded influence::

        f(x*) | data ~ N( m* + k*ᵀ (K + σ²W̃⁻²)⁻¹ z,   k** − k*ᵀ (K + σ²W̃⁻²)⁻¹ k* ),    z = y − m − σ² ∂_y log w̃²

    The model is ready to predict once built; :func:`rcgp.fit` chooses the hyperparameters. There are no training and
    evaluation modes. Modules given by the caller are used as they are, not copied, and cast to the type of the data.

    Args:
        train_X: ``n x d`` inputs.
        train_y: ``n`` observations. The model keeps copies of both.
        kernel: any GPyTorch kernel with one output. Default: squared exponential with a lengthscale for each input
            dimension and an output scale, without priors, started at the scales of the data.
        mean: prior mean m, on which the weights are centred: ``"zero"``, ``"constant"`` (sample mean), ``"median"``,
            ``"linear"``, ``"quadratic"`` (least squares, fitted once), ``"robust_linear"`` (Huber, fitted once), a
            callable from ``... x n x d`` to ``... x n``, or a GPyTorch ``Mean``, whose parameters are then fitted too.
        weight: a weight function of :mod:`rcgp.weights`. Default: ``InverseMultiquadric()``.
        noise: starting value of the noise variance σ². Default: a tenth of the squared robust spread of y − m.
            To hold it fixed in a fit: ``model.raw_noise.requires_grad_(False)``.

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

    train_X: Tensor
    train_y: Tensor

    def __init__(
        self,
        train_X: Tensor,
        train_y: Tensor,
        *,
        kernel: gpytorch.kernels.Kernel | None = None,
        mean: MeanLike = "constant",
        weight: WeightFunction | None = None,
        noise: float | None = None,
    ) -> None:
        X, y = check_training_data(train_X, train_y)
        if kernel is not None and not isinstance(kernel, gpytorch.kernels.Kernel):
            raise TypeError(f"kernel must be a GPyTorch kernel, got {type(kernel).__name__}")
        if weight is not None and not isinstance(weight, WeightFunction):
            raise TypeError(f"weight must be a WeightFunction of rcgp.weights, got {type(weight).__name__}")
        if noise is not None and not (math.isfinite(noise) and noise > 0):
            raise ValueError(f"noise must be a positive variance, got {noise}")
        super().__init__()
        self.register_buffer("train_X", X, persistent=False)
        self.register_buffer("train_y", y, persistent=False)
        self.mean = build_mean(mean, X, y).to(X)
        with torch.no_grad():
            residual = self.residual()
        spread = _robust_spread(residual)
        self.kernel = _default_kernel(X, spread) if kernel is None else kernel
        self.weight = InverseMultiquadric() if weight is None else weight
        self.register_parameter("raw_noise", torch.nn.Parameter(y.new_zeros(())))
        start = 0.1 * spread**2 if noise is None else noise
        self.register_constraint("raw_noise", _above(_NOISE_FLOOR * min(spread**2, start)))
        self.to(X)
        self.noise = start
        self.weight.initialise(residual)
        self._process: tuple[list[Tensor], PosteriorProcess] | None = None

    @property
    def noise(self) -> Tensor:
        """The noise variance σ², a scalar. Assign a number to change it."""
        value: Tensor = self.raw_noise_constraint.transform(self.raw_noise)
        return value

    @noise.setter
    def noise(self, value: float | Tensor) -> None:
        value = torch.as_tensor(value, dtype=self.raw_noise.dtype, device=self.raw_noise.device)
        self.initialize(raw_noise=self.raw_noise_constraint.inverse_transform(value))

    def residual(self) -> Tensor:
        """Residuals e = y − m(x) of the training data, ``n``."""
        residual: Tensor = self.train_y - self.mean(self.train_X)
        return residual

    def training_terms(self) -> TrainingTerms:
        """Kernel matrix, weights and pseudo-data at the current hyperparameters, differentiable in them. Cost O(n²)."""
        e, noise = self.residual(), self.noise
        w = self.weight(e, self.train_X, noise)
        slope = self.weight.slope(e, self.train_X, noise)
        return TrainingTerms(
            K=self._kernel_matrix(),
            residual=e,
            weight=w,
            slope=slope,
            noise=noise,
            pseudo=pseudo_data(e, w, slope, noise),
        )

    def weights(self) -> Tensor:
        """Normalised weight w̃ of each training point, ``n``: 1 is full trust, near 0 is an outlier.

        In (0, 1] for every weight of :mod:`rcgp.weights` but ``Heteroskedastic``, whose σ/r(x) may exceed 1.
        """
        with torch.no_grad():
            w: Tensor = self.weight(self.residual(), self.train_X, self.noise)
            return w.clamp_min(torch.finfo(w.dtype).tiny)

    def leave_one_out(self) -> LeaveOneOut:
        """Mean and variance of each observation y_i predicted from all others, each ``n``. Cost O(n³) for all.

        The prior mean and the threshold c are held fixed: they are not recomputed without y_i.
        """
        with torch.no_grad():
            terms = self.training_terms()
            latent = leave_one_out(terms.K, terms.pseudo)
            return LeaveOneOut(latent.mean + (self.train_y - terms.residual), latent.variance + terms.noise)

    def posterior(self, test_X: Tensor, observation_noise: bool = False) -> PosteriorNormal:
        """Posterior of f, or of new observations, at test inputs.

        Differentiable in ``test_X``; hyperparameters are treated as constants. The factorisation of the training data
        is kept until a hyperparameter changes.

        Args:
            test_X: ``... x q x d`` inputs.
            observation_noise: add σ² to each variance.

        Returns:
            A GPyTorch ``MultivariateNormal`` over ``q`` points. Cost n³/3 at the first call, then O(nq) for the mean
            and, when asked for, n²q for variances (in chunks) or covariances.
        """
        x = check_test_inputs(test_X, self.train_X)
        process = self._posterior_process()
        mean = self.mean(x).detach() if not x.requires_grad else self.mean(x)
        covariance = PosteriorKernel(process)(x)
        if observation_noise:
            covariance = covariance.add_diagonal(self.noise.detach())
        return PosteriorNormal(mean + process.mean(x), covariance)

    def hyperparameters(self) -> dict[str, Tensor]:
        """Name and value of every parameter, in its own units: ``kernel.base_kernel.lengthscale``, not the raw one."""
        values = {}
        for name, parameter, constraint in self.named_parameters_and_constraints():
            value = parameter.detach() if constraint is None else constraint.transform(parameter.detach())
            path, _, leaf = name.rpartition(".")
            if leaf == "log_c":
                leaf, value = "c", value.exp()
            values[f"{path}.{leaf.removeprefix('raw_')}".lstrip(".")] = value.clone()
        return values

    def _kernel_matrix(self) -> Tensor:
        K = kernel_matrix(self.kernel, self.train_X)
        n = self.train_X.shape[0]
        if K.shape != (n, n):
            raise ValueError(f"the kernel must give an {n} x {n} matrix for {n} training rows, got {tuple(K.shape)}")
        return K

    def _posterior_process(self) -> PosteriorProcess:
        """The posterior at the current hyperparameters, recomputed only if one of them has changed.

        Values are compared, not version counters: GPyTorch's setters write through ``.data``, which those do not see.
        """
        state = [tensor.detach() for tensor in (*self.parameters(), *self.buffers())]
        if self._process is not None and _same(self._process[0], state):
            return self._process[1]
        with torch.no_grad():
            terms = self.training_terms()
            exact = condition(terms.K, terms.pseudo)
        kernel = copy.deepcopy(self.kernel).requires_grad_(False)
        process = PosteriorProcess(kernel, self.train_X, exact)
        self._process = ([tensor.clone() for tensor in state], process)
        return process

    def __getstate__(self) -> dict[str, Any]:
        # What can be recomputed is neither pickled nor copied.
        return {**self.__dict__, "_process": None}


def _same(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) and all(
        a.dtype == b.dtype and a.device == b.device and torch.equal(a, b) for a, b in zip(first, second, strict=True)
    )


def _robust_spread(residual: Tensor) -> float:
    """Standard deviation of the residuals as their median size suggests; 1 where the data have no spread at all."""
    size = residual.abs()
    spread = float(size.quantile(0.5)) / 0.6745
    return spread or float(size.mean()) or 1.0


def _above(lower: float) -> gpytorch.constraints.GreaterThan:
    """Above a bound by the exponential map, which makes a fit independent of units."""
    # As a tensor: GPyTorch would round a float to single precision.
    bound = torch.tensor(lower, dtype=torch.float64)
    constraint = gpytorch.constraints.GreaterThan(0.0, transform=torch.exp, inv_transform=torch.log)
    constraint.lower_bound = bound
    return constraint


def _default_kernel(X: Tensor, spread: float) -> gpytorch.kernels.Kernel:
    """Squared exponential with one lengthscale for each dimension, started at the scales of the data."""
    d = X.shape[-1]
    base = gpytorch.kernels.RBFKernel(ard_num_dims=d, lengthscale_constraint=_above(0.0))
    kernel = gpytorch.kernels.ScaleKernel(base, outputscale_constraint=_above(0.0)).to(X)
    deviation = X.std(dim=0, correction=0)
    base.lengthscale = torch.where(deviation > 0, deviation, torch.ones_like(deviation)) * math.sqrt(d)
    kernel.outputscale = X.new_tensor(spread**2)  # a float would be rounded to float32 by GPyTorch
    return kernel
