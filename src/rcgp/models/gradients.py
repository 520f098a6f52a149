"""The robust conjugate GP of a function and its partial derivatives.

A derivative of a GP is a GP, jointly with the function: Cov(∂_j f(x), f(x')) = ∂k(x, x')/∂x_j, and likewise twice. So
the function and its d partial derivatives are 1 + d correlated outputs, and a value or a derivative is a cell of
:class:`rcgp.MultiOutputRCGP`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gpytorch
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from rcgp.models.cells import cell_weights
from rcgp.models.coregion import CellKernel
from rcgp.models.defaults import above, robust_scales, robust_spread
from rcgp.models.means import build_mean
from rcgp.models.outputs import MultiOutputRCGP
from rcgp.models.validation import as_real_tensor, check_finite, check_inputs
from rcgp.weights import WeightFunction

__all__ = ["GradientRCGP"]

_MEANS = ("zero", "constant", "median")


class GradientRCGP(MultiOutputRCGP):
    """Robust and conjugate Gaussian process regression of a function from its values and partial derivatives.

    Output 0 is the function, output j its derivative by input j = 1, …, d. Each has its own noise variance, noise law
    and weights: a wrong derivative is down-weighted alone, and the value at the same input keeps its weight. Everything
    else is as for :class:`MultiOutputRCGP`; :func:`rcgp.fit_robust` learns laws and hyperparameters.

    Args:
        train_X: ``n x d`` inputs.
        train_y: ``n`` values of the function; NaN for a missing one, ``None`` if all are missing.
        train_dy: ``n x d`` partial derivatives; NaN for a missing one. A derivative that was never observed has no
            noise variance and no noise law, but can be predicted.
        kernel: a GPyTorch kernel of a function and its gradient, such as ``RBFKernelGrad`` or ``Matern52KernelGrad``,
            or a scaled one. Default: a scaled ``RBFKernelGrad`` with a lengthscale for each input, initialised at
            the scales of the data.
        mean: prior mean of the function: ``"zero"``, or the ``"constant"`` mean or ``"median"`` of the observed values.
            The prior mean of the derivatives is zero.
        weight: a weight function, copied for each output, or a list of 1 + d of them.
        noise: initial noise variances, 1 + d, or one for all. Default: a tenth of each output's squared
            spread.
        sample_weight: ``n`` positive factors on the precision of each row, or ``n x (1 + d)`` of each cell.

    Raises:
        ValueError: for data of other shapes, not finite, or all missing; and for other means.

    An evaluation costs O(N³) for N observed values and derivatives.

    Example:
        >>> X = torch.linspace(0, 6, 12, dtype=torch.float64).unsqueeze(-1)
        >>> dy = X.cos()
        >>> dy[4] = 9.0
        >>> model = GradientRCGP(X, X.sin().squeeze(-1), dy)
        >>> int(model.cells(model.weights())[:, 1].argmin())
        4
        >>> model.posterior(X[:2]).mean.shape  # value and derivative at two inputs
        torch.Size([2, 2])
    """

    # Number of outputs without an observed cell.
    _unobserved: int = 0

    def __init__(
        self,
        train_X: Tensor | ArrayLike,
        train_y: Tensor | ArrayLike | None,
        train_dy: Tensor | ArrayLike,
        *,
        kernel: gpytorch.kernels.Kernel | None = None,
        mean: str = "median",
        weight: WeightFunction | Sequence[WeightFunction] | None = None,
        noise: float | Tensor | Sequence[float] | None = None,
        sample_weight: Tensor | ArrayLike | None = None,
    ) -> None:
        X, Y = _checked(train_X, train_y, train_dy)
        if mean not in _MEANS:
            raise ValueError(
                f"mean must be one of {', '.join(map(repr, _MEANS))}, whose gradient is zero, got {mean!r}; "
                "subtract another mean and its gradient from the data"
            )
        observed = ~Y.isnan()
        # Observed outputs come first: only these have a noise variance and a noise law.
        order = (~observed.any(dim=0)).long().argsort(stable=True)
        seen, row = order[observed.any(dim=0)[order]].tolist(), observed.nonzero()[:, 0]
        means = [build_mean("zero" if t else mean, X[observed[:, t]], Y[observed[:, t], t]) for t in seen]
        super().__init__(
            X[row],
            Y[observed],
            output=order.argsort()[observed.nonzero()[:, 1]],
            kernel=CellKernel(_build_kernel(kernel, X, Y), order),
            mean=means,
            weight=_of_outputs(weight, seen, Y.shape[1], "weight"),
            noise=_of_outputs(noise, seen, Y.shape[1], "noise"),
            sample_weight=cell_weights(sample_weight, observed),
        )
        self.observed = observed
        self._unobserved = Y.shape[1] - len(seen)
        self.mean.means.extend(build_mean("zero", X, X[:, 0]).to(X) for _ in range(self._unobserved))

    @property
    def outputs(self) -> int:
        """Number of observed outputs, which have noise variances, noise laws and weight functions."""
        return super().outputs - self._unobserved

    @property
    def observed_outputs(self) -> list[int]:
        """The output, 0 for the function and j for the derivative by input j, of each noise variance and noise law."""
        numbers: list[int] = self.kernel.order[: self.outputs].tolist()
        return numbers

    def set_cells(self, *data: Any, **options: Any) -> None:
        """As :meth:`MultiOutputRCGP.set_cells`, of values and derivatives; for a model in which all were observed."""
        if self._unobserved:
            raise ValueError(f"only outputs {self.observed_outputs} were observed: build a new model for other data")
        super().set_cells(*data, **options)

    def inlier_noise(self, x: Tensor) -> Tensor:
        """Noise variance of an inlier at ``... x q x (d + 1)`` inputs (x, t): ``... x q``."""
        if bool((x[..., -1] >= self.outputs).any()):
            raise ValueError(
                f"only outputs {self.observed_outputs} were observed: the noise of others is not known; "
                "choose some of these with outputs=..."
            )
        return super().inlier_noise(x)

    def _known_outputs(self) -> int:
        return super()._known_outputs() + self._unobserved

    def _check_outputs(self, outputs: Any) -> Tensor:
        number: Tensor = self.kernel.order.argsort()
        return number[super()._check_outputs(outputs).long()].to(self.train_X)


def _checked(train_X: Any, train_y: Any, train_dy: Any) -> tuple[Tensor, Tensor]:
    """Inputs ``n x d``, and values and derivatives side by side, ``n x (1 + d)``; or a ValueError."""
    X = check_inputs(train_X)
    y = torch.full_like(X[:, 0], torch.nan) if train_y is None else as_real_tensor(train_y, "train_y")
    dy = as_real_tensor(train_dy, "train_dy")
    if y.shape != X.shape[:1]:
        raise ValueError(f"train_y must have one value for each of the {len(X)} rows, got shape {tuple(y.shape)}")
    if dy.shape != X.shape:
        raise ValueError(f"train_dy must have the shape of train_X, {tuple(X.shape)}, got {tuple(dy.shape)}")
    check_finite(y, "train_y", missing=True)
    check_finite(dy, "train_dy", missing=True)
    dtype = torch.promote_types(X.dtype, torch.promote_types(y.dtype, dy.dtype))
    Y = torch.cat([y.unsqueeze(-1).to(dtype), dy.to(dtype)], dim=-1)
    if bool(Y.isnan().all()):
        raise ValueError(f"nothing was observed: all {len(X)} values and all derivatives are missing")
    return X.detach().to(dtype), Y.detach()


def _of_outputs(value: Any, seen: list[int], outputs: int, name: str) -> Any:
    """Values of the observed outputs, given one for each output; a single value for all is returned as it is."""
    if not isinstance(value, list | tuple) and not (isinstance(value, Tensor) and value.ndim == 1):
        return value
    if len(value) != outputs:
        raise ValueError(f"{name} must be one, or {outputs}: for the function and each derivative, got {len(value)}")
    return [value[t] for t in seen]


def _build_kernel(kernel: Any, X: Tensor, Y: Tensor) -> gpytorch.kernels.Kernel:
    """The given kernel, checked, or the default one."""
    if kernel is None:
        return _default_kernel(X, Y)
    if not isinstance(kernel, gpytorch.kernels.Kernel):
        raise TypeError(f"kernel must be a GPyTorch kernel, got {kernel!r}")
    if (outputs := kernel.num_outputs_per_input(X[:1], X[:1])) != Y.shape[1]:
        raise ValueError(
            f"kernel must have {Y.shape[1]} outputs, the function and each derivative, as RBFKernelGrad and "
            f"Matern52KernelGrad have; it has {outputs}"
        )
    return kernel.to(X)


def _default_kernel(X: Tensor, Y: Tensor) -> gpytorch.kernels.Kernel:
    """Scaled squared exponential, with lengthscales at the scales of the inputs times √d, as for ``RCGP``."""
    lengthscale = robust_scales(X) * math.sqrt(X.shape[1])
    base = gpytorch.kernels.RBFKernelGrad(ard_num_dims=X.shape[1], lengthscale_constraint=above(0.0))
    kernel = gpytorch.kernels.ScaleKernel(base, outputscale_constraint=above(0.0)).to(X)
    parts = [part[~part.isnan()] for part in Y.T]
    values = parts[0] - parts[0].quantile(0.5) if len(parts[0]) else parts[0]
    spreads = [robust_spread(part) if len(part) else math.nan for part in (values, *parts[1:])]
    slopes = X.new_tensor(spreads[1:])  # spread of ∂_j f is that of f over ℓ_j
    spread = spreads[0] if len(values) else float((slopes * lengthscale).nanmedian())
    varies = (X[:1] != X).any(dim=0)
    base.lengthscale = torch.where(varies | slopes.isnan(), lengthscale, spread / slopes)
    kernel.outputscale = X.new_tensor(spread**2)
    return kernel
