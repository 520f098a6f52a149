"""Prior means: named ones, fitted once; callables; and GPyTorch means, which are trained.

The weights are centred on the prior mean, so its choice matters more here than in an ordinary GP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import gpytorch
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rcgp.models.defaults import NORMAL_MAD, column_scales

__all__ = ["CallableMean", "MeanLike", "OutputMeans", "PolynomialMean", "build_mean"]

MeanLike: TypeAlias = str | Callable[[Tensor], Tensor] | gpytorch.means.Mean

#: Residuals beyond this many robust standard deviations count linearly: Huber's choice, 95 % efficient.
_HUBER = 1.345


def build_mean(mean: MeanLike, X: Tensor, y: Tensor) -> gpytorch.means.Mean:
    """The prior mean module of ``RCGP(mean=...)``.

    Args:
        mean: ``"zero"``, ``"constant"`` (sample mean), ``"median"``, ``"linear"``, ``"quadratic"`` (least squares),
            ``"robust_linear"`` (Huber), a callable from ``... x n x d`` inputs to ``... x n``, or a GPyTorch mean.
        X: ``n x d`` training inputs.
        y: ``n`` observations.
    """
    if isinstance(mean, gpytorch.means.Mean):
        return mean
    if callable(mean):
        return CallableMean(mean, X)
    # Degree and coefficients, given the features.
    named: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
        "zero": (0, lambda features: y.new_zeros(1)),
        "constant": (0, lambda features: (y / y.shape[0]).sum().reshape(1)),
        "median": (0, lambda features: y.quantile(0.5).reshape(1)),
        "linear": (1, lambda features: _least_squares(features, y)),
        "quadratic": (2, lambda features: _least_squares(features, y)),
        "robust_linear": (1, lambda features: _huber(features, y)),
    }
    if not isinstance(mean, str) or mean not in named:
        raise ValueError(f"mean must be {', '.join(map(repr, named))}, a callable or a GPyTorch Mean, got {mean!r}")
    degree, fit = named[mean]
    return PolynomialMean(degree, X, fit)


class PolynomialMean(gpytorch.means.Mean):  # type: ignore[misc]
    """A polynomial of degree 0, 1 or 2 (cross terms included) with fixed coefficients.

    Inputs are centred and scaled first, so that the fit does not depend on their units. With fewer rows than
    coefficients, or dependent columns, the fit is that of smallest norm.

    Args:
        degree: 0, 1 or 2.
        X: ``n x d`` training inputs.
        fit: maps the ``n x p`` features to ``p`` coefficients.
    """

    centre: Tensor
    scale: Tensor
    coefficients: Tensor

    def __init__(self, degree: int, X: Tensor, fit: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.degree = degree
        self.register_buffer("centre", X.mean(dim=0))
        self.register_buffer("scale", column_scales(X))
        self.register_buffer("coefficients", fit(self.features(X)))

    def extra_repr(self) -> str:
        return f"degree={self.degree}" + (f", value={float(self.coefficients):.6g}" if self.degree == 0 else "")

    def features(self, x: Tensor) -> Tensor:
        """``... x n x p`` monomials of the scaled inputs."""
        columns = [torch.ones_like(x[..., :1])]
        if self.degree >= 1:
            u = (x - self.centre) / self.scale
            columns.append(u)
            if self.degree == 2:
                first, second = torch.triu_indices(u.shape[-1], u.shape[-1], device=u.device)
                columns.append(u[..., first] * u[..., second])
        return torch.cat(columns, dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x) @ self.coefficients


class OutputMeans(gpytorch.means.Mean):  # type: ignore[misc]
    """A prior mean for each of T outputs; the last column of the ``... x n x (d + 1)`` inputs is its number."""

    def __init__(self, means: Sequence[gpytorch.means.Mean]) -> None:
        super().__init__()
        self.means = torch.nn.ModuleList(means)

    def forward(self, x: Tensor) -> Tensor:
        values = torch.stack([mean(x[..., :-1]) for mean in self.means], dim=-1)
        return values.gather(-1, x[..., -1:].long()).squeeze(-1)


class CallableMean(gpytorch.means.Mean):  # type: ignore[misc]
    """A user's function as a fixed prior mean. Its parameters, if any, are not trained."""

    def __init__(self, function: Callable[[Tensor], Tensor], X: Tensor) -> None:
        super().__init__()
        # In a tuple, so that a torch module is not registered and trained.
        self._function = (function,)
        self._dtype = X.dtype

    def __deepcopy__(self, memo: dict[int, object]) -> CallableMean:
        return self  # immutable, and not every function can be copied

    def forward(self, x: Tensor) -> Tensor:
        # Differentiable in x only: a network inside the function gets no gradient.
        value = _InputsOnly.apply(x.to(self._dtype), self._function[0])  # type: ignore[no-untyped-call]
        if not isinstance(value, Tensor) or value.shape != x.shape[:-1]:
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f"mean must return a tensor of shape {tuple(x.shape[:-1])} for inputs {tuple(x.shape)}, got {got}"
            )
        return value.to(x)


class _InputsOnly(torch.autograd.Function):
    """x ↦ function(x), differentiable once in x and in nothing else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Callable[[Tensor], Tensor]) -> Any:
        if not ctx.needs_input_grad[0]:
            return function(x)
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.value = function(ctx.x)
        return ctx.value.detach() if isinstance(ctx.value, Tensor) else ctx.value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        if not ctx.value.requires_grad:
            return torch.zeros_like(ctx.x), None
        (grad_x,) = torch.autograd.grad(
            ctx.value, ctx.x, grad, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return grad_x, None


def _least_squares(features: Tensor, y: Tensor) -> Tensor:
    """Least-squares coefficients of smallest norm, by pivoted QR. Cost O(np²)."""
    # The pivoted QR of gelsy handles dependent columns; it exists on the CPU only.
    fit = torch.linalg.lstsq(features.cpu(), y.cpu().unsqueeze(-1), driver="gelsy")
    coefficients: Tensor = fit.solution.squeeze(-1)
    return coefficients.to(y)


def _huber(features: Tensor, y: Tensor) -> Tensor:
    """Huber's M-estimate by iteratively re-weighted least squares, with the scale from the median absolute residual.

    It starts from the median, which outliers hardly move, instead of least squares.
    """
    coefficients = y.new_zeros(features.shape[-1])
    coefficients[0] = y.quantile(0.5)
    for _ in range(100):
        residual = y - features @ coefficients
        scale = residual.abs().quantile(0.5) / NORMAL_MAD
        if scale == 0:  # more than half of the points lie exactly on the line
            break
        root_weight = (_HUBER * scale / residual.abs().clamp_min(_HUBER * scale)).sqrt()
        updated = _least_squares(root_weight.unsqueeze(-1) * features, root_weight * y)
        change = (features @ (updated - coefficients)).abs().amax()
        coefficients = updated
        if change <= 1e-10 * scale:
            break
    return coefficients
