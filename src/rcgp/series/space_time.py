"""The robust conjugate GP of a field, observed at fixed sites over time: a state-space model of all sites at once.

With a separable kernel k_space(x, x') k_time(t, t') and K = L Lᵀ the kernel in space between the s sites,

    f(x_i, t) = Σ_j L_ij g_j(t),        g_1, …, g_s independent, each with the kernel k_time,

so that the state is s copies of that of a series, and site i observes it by L_i ⊗ h. A new site x observes it by c ⊗ h,
c = L⁻¹ k_space(S, x). What the sites do not say of it has the variance (k_space(x, x) − c·c) k_time(t, t), whatever the
data. All of that is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gpytorch
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn.functional import pad

from rcgp.core.linalg import cholesky
from rcgp.models.cells import arranged
from rcgp.models.defaults import above, robust_scales, robust_spread, varying_columns
from rcgp.models.kernel_matrix import dense_kernel
from rcgp.models.means import MeanLike, build_mean
from rcgp.models.validation import as_real_tensor, check_finite, check_kernel
from rcgp.series.defaults import default_series_kernel
from rcgp.series.kernels import Term, layout_of, on_columns, terms_of
from rcgp.series.model import MarkovRCGP, nearest_in
from rcgp.series.process import Merged, sorted_pseudo
from rcgp.series.solver import Axis, StateSpace
from rcgp.weights import Constant, WeightFunction

__all__ = ["FieldPosterior", "SpaceTimeRCGP"]

# Largest state, and seconds that an evaluation takes for each cell and each squared number of the state: 0.3 ms a cell.
_LARGEST_STATE, _SECONDS = 400, 2e-9

# Times of a stretch on which starts of a fit are tried: enough to tell a lengthscale of a few of them from none.
_TIMES = 16


@dataclass(frozen=True)
class FieldPosterior:
    """Normal distributions of a field at q times and p sites.

    Attributes:
        mean, variance: ``q x p`` each.
    """

    mean: Tensor
    variance: Tensor


class SpaceTimeRCGP(MarkovRCGP):
    """Robust and conjugate Gaussian process regression of a field at fixed sites over time, linear in the times.

    The posterior of :class:`rcgp.RCGP` with the kernel k_space(x, x') k_time(t, t'), exactly: its training rows are the
    observed cells of Y, row by row, with the inputs (t, x). Weights, leave-one-out predictions and outlier
    probabilities belong to cells; :meth:`cells` arranges them like Y. :func:`rcgp.fit_robust` learns noise law, weights
    and hyperparameters, ``fit(model, "marginal")`` the hyperparameters of an ordinary GP.

    Args:
        times: ``T`` times, in any order; they may be irregular and may repeat.
        sites: ``s x d`` coordinates of the sites, or ``s``.
        Y: ``T x s`` observations. NaN is a missing cell; a site may have no cell at all.
        time_kernel: a GPyTorch kernel with a state-space form, as for :class:`rcgp.StateSpaceRCGP`. Default: a scaled
            Matérn kernel of ν = 3/2.
        space_kernel: any GPyTorch kernel of ``d`` columns. The scale is best left to the time kernel. Default: Matérn
            of ν = 3/2 with a lengthscale for each column, started at the scale of the sites.
        mean, noise, weight: as for :class:`rcgp.StateSpaceRCGP`; the mean is one of ``n x (1 + d)`` inputs.
        sample_weight: ``T x s`` positive factors on the precision of each cell.

    An evaluation costs O(T s³ D²) for a temporal state of D numbers, 2 for the default kernel.

    Raises:
        ValueError: for data of other shapes or not finite, sites that repeat, kernels without state-space form, and
            states of more than 400 numbers.
    """

    sites: Tensor

    def __init__(
        self,
        times: Tensor | ArrayLike,
        sites: Tensor | ArrayLike,
        Y: Tensor | ArrayLike,
        *,
        time_kernel: gpytorch.kernels.Kernel | None = None,
        space_kernel: gpytorch.kernels.Kernel | None = None,
        mean: MeanLike = "median",
        noise: float | None = None,
        sample_weight: Tensor | ArrayLike | None = None,
        weight: WeightFunction | None = None,
    ) -> None:
        t, places, values = _check_field(times, sites, Y)
        observed = ~values.isnan()
        X, y = _grid(t, places)[observed], values[observed]
        precision = None if sample_weight is None else as_real_tensor(sample_weight, "sample_weight")
        if precision is not None and precision.shape != observed.shape:
            shapes = f"{tuple(observed.shape)}, got {tuple(precision.shape)}"
            raise ValueError(f"sample_weight must have the shape of Y, {shapes}")
        if time_kernel is None:
            with torch.no_grad():
                residual = y - build_mean(mean, X, y).to(X)(X)
            time_kernel = default_series_kernel(X[:, :1], robust_spread(residual))
        if space_kernel is None:
            space_kernel = _default_space_kernel(places)
        for kernel, name in (time_kernel, "time_kernel"), (space_kernel, "space_kernel"):
            if not isinstance(kernel, gpytorch.kernels.Kernel):
                raise TypeError(f"{name} must be a GPyTorch kernel, got {type(kernel).__name__}")
        _check_size(time_kernel, len(places), len(y))
        check_kernel(space_kernel.to(places), places)
        super().__init__(
            X,
            y,
            kernel=gpytorch.kernels.ProductKernel(
                on_columns(time_kernel, 0, 1), on_columns(space_kernel, 1, places.shape[1])
            ),
            mean=mean,
            weight=Constant() if weight is None else weight,
            noise=noise,
            sample_weight=None if precision is None else precision[observed],
        )
        self.register_buffer("sites", places, persistent=False)
        #: Which cells of Y are observed, those of ``train_X`` and ``train_y``: ``T x s``.
        self.observed = observed

    @property
    def time_kernel(self) -> gpytorch.kernels.Kernel:
        """The kernel in time, which shares its parameters with the one that was given, on column 0 of the inputs."""
        return self.kernel.kernels[0]

    @property
    def space_kernel(self) -> gpytorch.kernels.Kernel:
        """The kernel in space, which shares its parameters with the one that was given, on the other columns."""
        return self.kernel.kernels[1]

    def cells(self, values: Tensor) -> Tensor:
        """One value for each training row, ``n``, as ``T x s`` numbers like Y: NaN where a cell is missing."""
        return arranged(values, self.observed)

    def posterior(  # type: ignore[override]
        self, times: Tensor | ArrayLike, sites: Tensor | ArrayLike | None = None, observation_noise: bool = False
    ) -> FieldPosterior:
        """Posterior of f, or of new observations, at all pairs of times and sites, without gradient.

        Args:
            times: ``q`` times.
            sites: ``p x d`` sites, or ``p`` of one coordinate. Default: those of the model.
            observation_noise: as for :meth:`rcgp.RCGP.posterior`.

        Returns:
            ``q x p`` means and variances. Cost that of an evaluation with q·p more cells.
        """
        with torch.no_grad():
            model, passes, z, points, c = self._at(times, sites)
            mean, variance = (torch.from_numpy(part).reshape(points.shape[:2]) for part in passes.run(z))
            mean += model.mean(points)
            if c is not None:
                left = model.space_kernel(points[0], diag=True) - c.square().sum(dim=0)
                variance += left.clamp_min(0.0) * model.time_kernel(points[:, 0], diag=True).unsqueeze(-1)
            if observation_noise:
                variance += model.inlier_noise(points)
            return FieldPosterior(mean.to(self.train_X), variance.to(self.train_X))

    def sample(
        self,
        times: Tensor | ArrayLike,
        sites: Tensor | ArrayLike | None = None,
        samples: int = 1,
        seed: int | None = None,
    ) -> Tensor:
        """Joint samples of f at all pairs of times and sites from the posterior, ``samples x q x p``.

        Each costs as much as :meth:`posterior`, by the rule of :meth:`rcgp.StateSpaceRCGP.sample`.

        Args:
            times, sites: as for :meth:`posterior`.
            samples: their number.
            seed: of the random numbers.
        """
        random = np.random.default_rng(seed)
        with torch.no_grad():
            model, passes, z, points, c = self._at(times, sites)
            prior = model.mean(points).numpy()
            apart = None if c is None else _Apart.of(model, points, c)
            drawn = np.empty((samples, *prior.shape))
            for f in drawn:
                f[:] = prior + passes.sample(z, random).reshape(prior.shape)
                f += 0.0 if apart is None else apart.draw(random)
        return torch.from_numpy(drawn).to(self.train_X)

    def nearest_rows(self) -> Tensor:
        """The cell of the same site that is nearest in time to each training row, ``n``.

        Where a site has one cell only, the one that is nearest in time.
        """
        t, place = self.train_X[:, 0].double().numpy(), self._places()
        order = np.lexsort((self.train_y.numpy(), t, place))
        gaps = np.where(np.diff(place[order]) == 0, np.diff(t[order]), np.inf)
        nearest = nearest_in(torch.from_numpy(order), gaps)
        alone = torch.from_numpy(np.bincount(place, minlength=len(self.sites))[place] == 1)
        return torch.where(alone, super().nearest_rows(), nearest)

    def scaled_kernel(self) -> gpytorch.kernels.Kernel:
        """The time kernel. Lengthscales in space, scaled down as far, would part the sites: no gradient leads back."""
        return self.time_kernel

    def _terms(self) -> list[Term]:
        return terms_of(self.time_kernel)

    def _loadings(self) -> tuple[Tensor, int]:
        return self._weave()[0], len(self.sites)

    def _at(
        self, times: Tensor | ArrayLike, sites: Tensor | ArrayLike | None
    ) -> tuple[SpaceTimeRCGP, Merged, NDArray[np.float64], Tensor, Tensor | None]:
        """This model in float64, its passes with all pairs of times and sites, targets, ``q x p x (1 + d)`` points, c.

        The last, ``s x p``, are the loadings of new sites on the old ones; ``None`` without new sites.
        """
        t = self._check_times(times)
        if t.ndim != 2:
            raise ValueError(f"times must have shape q, got {tuple(t.shape[:-1])}")
        x = self.sites if sites is None else _check_sites(sites, self.sites.shape[1]).to(self.sites)
        model, s, q, p = self.in_float64(), len(self.sites), len(t), len(x)
        assert isinstance(model, SpaceTimeRCGP)
        H, c = model._weave(None if sites is None else x.double())
        order, axis = model._axis()
        z, w = sorted_pseudo(model.training_terms().pseudo, order)
        place = np.tile(np.arange(p) + (0 if sites is None else s), q)
        space = StateSpace(model._terms(), H.numpy(), s)
        passes = Merged(space, axis, w, np.repeat(t.double().squeeze(-1).numpy(), p), place)
        return model, passes, z, _grid(t, x).double(), c

    def _weave(self, new: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """H of the sites, and of new ones after them; and c of the latter, ``s x p``.

        Args:
            new: ``p x d`` sites.
        """
        sites = pad(self.sites, (1, 0))  # the kernel is one of (t, x)
        L = cholesky(dense_kernel(self.space_kernel, sites, sites).double())
        h = torch.from_numpy(layout_of(self._terms()).values)
        if new is None:
            return (L.unsqueeze(-1) * h).flatten(1), None  # L ⊗ h
        points = pad(new, (1, 0))
        c = torch.linalg.solve_triangular(L, dense_kernel(self.space_kernel, sites, points), upper=False)
        return (torch.cat([L, c.T]).unsqueeze(-1) * h).flatten(1), c

    def _places(self) -> NDArray[np.int64]:
        place = np.zeros(len(self.train_X), dtype=np.int64)
        for i, site in enumerate(self.sites):
            place[(self.train_X[:, 1:] == site).all(dim=-1).numpy()] = i
        return place

    def _shortest_stretch(self) -> int:
        return _TIMES * len(self.sites)


@dataclass(frozen=True)
class _Apart:
    """The part of p new sites that is independent of the old ones: p processes, mixed by a root of K − cᵀc."""

    space: StateSpace
    axis: Axis
    order: NDArray[np.int64]

    @classmethod
    def of(cls, model: SpaceTimeRCGP, points: Tensor, c: Tensor) -> _Apart:
        """At ``q x p x (1 + d)`` points, where the old sites explain c, ``s x p``."""
        values, vectors = torch.linalg.eigh(dense_kernel(model.space_kernel, points[0], points[0]) - c.T @ c)
        root, h = vectors * values.clamp_min(0.0).sqrt(), torch.from_numpy(layout_of(model._terms()).values)
        t, p = points[:, 0, 0].numpy(), len(root)
        order = np.argsort(t, kind="stable")
        space = StateSpace(model._terms(), (root.unsqueeze(-1) * h).flatten(1).numpy(), p)
        return cls(space, Axis(np.repeat(t[order], p), np.tile(np.arange(p), len(t))), order)

    def draw(self, random: np.random.Generator) -> NDArray[np.float64]:
        """A sample, ``q x p``."""
        values = np.empty((len(self.order), len(self.space.H)))
        values[self.order] = self.space.draw(self.axis, random).reshape(values.shape)
        return values


def _grid(times: Tensor, sites: Tensor) -> Tensor:
    """``T x s x (1 + d)`` inputs (t, x), of ``T x 1`` times and ``s x d`` sites."""
    T, s = len(times), len(sites)
    return torch.cat([times.unsqueeze(1).expand(T, s, 1), sites.expand(T, *sites.shape)], dim=-1)


def _default_space_kernel(sites: Tensor) -> gpytorch.kernels.Kernel:
    """A Matérn kernel of ν = 3/2 on the columns that vary, started at the scales of the sites times √d."""
    columns = varying_columns(sites)
    scales = robust_scales(sites if columns is None else sites[:, columns])
    kernel = gpytorch.kernels.MaternKernel(
        nu=1.5, ard_num_dims=len(scales), active_dims=columns, lengthscale_constraint=above(0.0)
    ).to(sites)
    kernel.lengthscale = scales * len(scales) ** 0.5
    return kernel


def _check_field(times: Any, sites: Any, Y: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Times ``T x 1``, sites ``s x d`` and ``T x s`` values, as copies of one floating type; or a ValueError."""
    t, x, values = as_real_tensor(times, "times"), _check_sites(sites), as_real_tensor(Y, "Y")
    t = t.unsqueeze(-1) if t.ndim == 1 else t
    if t.ndim != 2 or t.shape[1] != 1 or len(t) == 0:
        raise ValueError(f"times must have shape T, at least one of them, got {tuple(t.shape)}")
    if values.shape != (len(t), len(x)):
        hint = "; use Y.T" if values.shape == (len(x), len(t)) else ""
        raise ValueError(f"Y must have shape T x s = {len(t)} x {len(x)}, got {tuple(values.shape)}{hint}")
    if devices := {str(part.device) for part in (t, x, values)} - {"cpu"}:
        raise ValueError(f"fields are fitted on the CPU, got data on {', '.join(sorted(devices))}")
    check_finite(t, "times")
    check_finite(values.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf), "Y")
    if bool(values.isnan().all()):
        raise ValueError(f"Y has no observation: all {values.numel()} cells are missing")
    _, inverse, counts = torch.unique(x, dim=0, return_inverse=True, return_counts=True)
    if bool((counts > 1).any()):
        same = (inverse == int(counts.argmax())).nonzero().squeeze(-1).tolist()
        raise ValueError(f"sites {', '.join(map(str, same))} are one and the same place: join their columns of Y")
    dtype = torch.promote_types(torch.promote_types(t.dtype, x.dtype), values.dtype)
    t, x, values = (part.detach().to(dtype).clone() for part in (t, x, values))
    return t, x, values


def _check_sites(sites: Any, columns: int | None = None) -> Tensor:
    """Sites ``s x d``, finite, at least one; or a ValueError."""
    x = as_real_tensor(sites, "sites")
    x = x.unsqueeze(-1) if x.ndim == 1 else x
    if x.ndim != 2 or x.numel() == 0 or x.shape[1] != (columns or x.shape[1]):
        raise ValueError(f"sites must have shape s x {columns or 'd'}, at least one of them, got {tuple(x.shape)}")
    check_finite(x, "sites")
    return x


def _check_size(time_kernel: gpytorch.kernels.Kernel, sites: int, cells: int) -> None:
    """Raise a ValueError for a kernel without state-space form, or a state that is too large."""
    own = sum(layout_of(terms_of(time_kernel)).blocks)
    if (size := own * sites) > _LARGEST_STATE:
        raise ValueError(
            f"a state of {sites} sites x {own} numbers, {size}, is too large: at most {_LARGEST_STATE}. An evaluation "
            f"of {cells} cells would take about {_SECONDS * cells * size**2:.2g} s, a fit about a hundred times that. "
            "Take fewer sites, a simpler time kernel, or SparseRCGP on the cells"
        )
