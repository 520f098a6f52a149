"""The Student-t GP: heavy-tailed noise instead of robust weights, the model most often used against outliers.

Inference is variational (:mod:`rcgp_paper.baselines.variational`), with 2n parameters as in Opper and Archambeau
(2009); the paper's t-GP is this model. Unlike there, the degrees of freedom are learned unless they are given.
"""

from __future__ import annotations

import math

import gpytorch
import numpy as np
import torch
from torch import Tensor

from rcgp.models.defaults import Between
from rcgp.models.means import MeanLike
from rcgp.models.posterior import PosteriorNormal
from rcgp.models.validation import as_real_tensor, check_finite
from rcgp_paper.baselines.variational import VariationalGP

__all__ = ["StudentTGP"]

# Between them the noise has a variance, at most 21 times the squared scale, and log Γ keeps its digits.
_FEWEST_DEGREES, _MOST_DEGREES = 2.1, 1e6

# Initial value of learned degrees of freedom.
_START_DEGREES = 4.0

# Nodes of Gauss–Hermite quadrature; 1e-9 nats of error for a posterior half as wide as the noise (σ√ν).
_NODES = 32

# Nodes of the trapezoidal rule for predictive distributions.
_MIXTURE_NODES = 400


class StudentTGP(VariationalGP):
    """Gaussian process regression with Student-t noise: y = f(x) + σ t_ν.

    Args:
        train_X: ``n x d`` inputs.
        train_y: ``n`` observations.
        kernel, mean: as in ``RCGP``.
        noise: starting value of the squared scale σ² of the noise, as in ``RCGP``; its variance is σ²ν/(ν − 2).
        degrees_of_freedom: ν, held fixed. Default: learned, between 2.1 and 1e6, started at 4.

    Example:
        >>> X = torch.linspace(0, 6, 40, dtype=torch.float64).unsqueeze(-1)
        >>> y = torch.sin(X.squeeze(-1))
        >>> y[10] = 25.0
        >>> model = StudentTGP(X, y, degrees_of_freedom=3.0)
        >>> int(model.weights().argmin())
        10
    """

    # Far too small, for data that nearly follow a smooth function.
    start_noise = 1e-2
    nodes: Tensor
    node_weights: Tensor

    def __init__(
        self,
        train_X: Tensor,
        train_y: Tensor,
        *,
        kernel: gpytorch.kernels.Kernel | None = None,
        mean: MeanLike = "constant",
        noise: float | None = None,
        degrees_of_freedom: float | None = None,
    ) -> None:
        super().__init__(train_X, train_y, kernel=kernel, mean=mean, noise=noise)
        self.register_parameter("raw_degrees_of_freedom", torch.nn.Parameter(self.train_y.new_zeros(())))
        self.register_constraint("raw_degrees_of_freedom", Between(_FEWEST_DEGREES, _MOST_DEGREES))
        self.degrees_of_freedom = _START_DEGREES if degrees_of_freedom is None else degrees_of_freedom
        self.raw_degrees_of_freedom.requires_grad_(degrees_of_freedom is None)
        nodes, node_weights = np.polynomial.hermite_e.hermegauss(_NODES)
        self.register_buffer("nodes", self.train_y.new_tensor(nodes).unsqueeze(-1), persistent=False)
        self.register_buffer(
            "node_weights", self.train_y.new_tensor(node_weights / node_weights.sum()), persistent=False
        )

    @property
    def degrees_of_freedom(self) -> Tensor:
        """The degrees of freedom ν, a scalar. Assign a number to change it."""
        value: Tensor = self.raw_degrees_of_freedom_constraint.transform(self.raw_degrees_of_freedom)
        return value

    @degrees_of_freedom.setter
    def degrees_of_freedom(self, value: float | Tensor) -> None:
        number = float(value)
        if not _FEWEST_DEGREES <= number <= _MOST_DEGREES:
            raise ValueError(
                f"degrees_of_freedom must be between {_FEWEST_DEGREES} and {_MOST_DEGREES:g}, got {number}; for more, "
                "use GaussianGP"
            )
        self.initialize(raw_degrees_of_freedom=self.raw_degrees_of_freedom.new_tensor(math.log(number)))

    @property
    def noise_variance(self) -> Tensor:
        """The variance σ²ν/(ν − 2) of the noise, a scalar."""
        nu = self.degrees_of_freedom
        return self.noise * nu / (nu - 2.0)

    def expected_log_likelihood(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Σ_i E log t(y_i; f_i, σ, ν) for f_i ~ N(μ_i, v_i), by Gauss–Hermite quadrature. Cost 32n."""
        f = mean + variance.sqrt() * self.nodes  # nodes x n
        log_density = _log_student_t(self.residual() - f, self.noise, self.degrees_of_freedom)
        return (self.node_weights @ log_density).sum()

    def largest_precision(self) -> Tensor:
        """(ν + 1)/(νσ²), the curvature of the log density at its mode."""
        nu = self.degrees_of_freedom
        return (nu + 1.0) / (nu * self.noise)

    def posterior(self, test_X: Tensor, observation_noise: bool = False) -> PosteriorNormal:
        """Posterior of f, or of new observations, at test inputs; see :meth:`rcgp.RCGP.posterior`.

        With observation noise it is the normal distribution with the moments of a new observation. The density of one
        is :meth:`log_predictive_density`, the rest of its distribution :meth:`predictive_mixture`.
        """
        latent = super().posterior(test_X)
        if not observation_noise:
            return latent
        covariance = latent.lazy_covariance_matrix.add_diagonal(self.noise_variance.detach())
        return PosteriorNormal(latent.mean, covariance)

    def log_predictive_density(self, test_X: Tensor, y: Tensor) -> Tensor:
        """log p(y* | data) of each new observation, with Student-t noise.

        The t distribution is a mixture of normals N(f, σ²/τ) over τ ~ Γ(ν/2, ν/2), so that
        p(y*) = ∫ N(y*; μ, v + σ²/τ) p(τ) dτ, an integral over log τ that the trapezoidal rule takes to many digits.
        Inputs ``... x q x d`` and observations ``... x q`` give log densities ``... x q``.
        """
        with torch.no_grad():
            latent = super().posterior(test_X)
            values = as_real_tensor(y, "y").to(latent.mean)
            if values.shape != latent.mean.shape:
                raise ValueError(
                    f"y must have shape {tuple(latent.mean.shape)} for these test_X, got {tuple(values.shape)}"
                )
            check_finite(values, "y")
            residual, variance = (values - latent.mean).double(), latent.variance.double()
            density = _log_blurred_student_t(residual, variance, self.noise.double(), self.degrees_of_freedom.double())
            return density.to(latent.mean)

    def predictive_mixture(self, test_X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """New observations as normals of one mean and several standard deviations: p(y*) = Σ_k w_k N(y*; μ, s_k²).

        The integral over τ of :meth:`log_predictive_density` as a sum over k = 400 fixed nodes: accurate for means,
        quantiles and distances, not for densities far out.

        Args:
            test_X: ``... x q x d`` inputs.

        Returns:
            ``... x q`` means, ``k`` weights with sum 1, and ``... x q x k`` standard deviations, in double precision.
        """
        with torch.no_grad():
            latent = super().posterior(test_X)
            noise, nu = self.noise.double(), self.degrees_of_freedom.double()
            # E|y| is proportional to E τ^(-½), whose integrand falls as τ^(½(ν − 1)).
            margin = math.sqrt(160.0 / float(nu))
            low = -margin - 80.0 / (float(nu) - 1.0)
            x = torch.linspace(low, margin, _MIXTURE_NODES, dtype=torch.float64, device=noise.device)
            weights = torch.softmax(0.5 * nu * (x - x.exp()), dim=-1)
            variances = latent.variance.double().unsqueeze(-1) + noise * (-x).exp()
            return latent.mean.double(), weights, variances.sqrt()


def _log_student_t(residual: Tensor, noise: Tensor, nu: Tensor) -> Tensor:
    """Log density of residuals under the t distribution of squared scale ``noise``, elementwise."""
    scale = (nu * noise).sqrt()
    constant = torch.lgamma(0.5 * (nu + 1.0)) - torch.lgamma(0.5 * nu) - 0.5 * math.log(math.pi) - scale.log()
    u = residual / scale
    # hypot, because squares of residuals may overflow.
    return constant - (nu + 1.0) * torch.hypot(torch.ones_like(u), u).log()


def _log_blurred_student_t(residual: Tensor, variance: Tensor, noise: Tensor, nu: Tensor) -> Tensor:
    """log ∫ t(residual − f) N(f; 0, variance) df, elementwise, by the trapezoidal rule over x = log τ.

    The logarithm of the integrand, ½ν(x − eˣ) and a normal density, has its mode between 0 and −log(1 + e²/νσ²) and
    falls by more than 40 within the margins added to these.
    """
    margin = math.sqrt(160.0 / float(nu))
    low = -(1.0 + (residual / (nu * noise).sqrt()).square().clamp_max(1e300)).log() - margin - 80.0 / nu
    share = torch.linspace(0.0, 1.0, _MIXTURE_NODES, dtype=residual.dtype, device=residual.device)
    x = low.unsqueeze(-1) + (margin - low).unsqueeze(-1) * share
    spread = variance.unsqueeze(-1) + noise * (-x).exp()
    normal = -0.5 * (math.log(2.0 * math.pi) + spread.log() + (residual.unsqueeze(-1) / spread.sqrt()).square())
    mixing = 0.5 * nu * (x - x.exp() + (0.5 * nu).log()) - torch.lgamma(0.5 * nu)
    return torch.logsumexp(normal + mixing, dim=-1) + ((margin - low) / (_MIXTURE_NODES - 1)).log()
