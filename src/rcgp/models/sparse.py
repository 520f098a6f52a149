"""Robust conjugate GPs of one or several outputs, seen through inducing points: for more rows than fit in K."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from rcgp.core.exact import LeaveOneOut
from rcgp.core.pseudo import PseudoData
from rcgp.core.sparse import SparsePosterior, condition_sparse, leave_one_out_sparse
from rcgp.models.coregion import CoregionKernel, with_output
from rcgp.models.defaults import column_scales
from rcgp.models.exact import RCGP
from rcgp.models.inducing import check_inducing, check_selection, choose_inducing
from rcgp.models.outputs import MultiOutputRCGP
from rcgp.models.sparse_rows import Rows, signal_bound_of, sparse_moments

__all__ = ["SparseMultiOutputRCGP", "SparseRCGP"]


class SparseRCGP(RCGP):
    """Robust and conjugate GP regression with m inducing points: O(nm²) instead of O(n³), the paper's RCSVGP.

    The function is seen through its values at m points u. With k_i = k(u, x_i), pseudo-targets z and pseudo-noises r::

        P = K_uu + Σ k_i k_iᵀ / r_i
        f(x*) | data ~ N( m* + k*ᵀ P⁻¹ Σ k_i z_i / r_i,   k** − k*ᵀ K_uu⁻¹ k* + k*ᵀ P⁻¹ k* )

    With every row an inducing point it equals :class:`RCGP`. Everything else is as in :class:`RCGP`; :func:`rcgp.fit`
    chooses the hyperparameters by ``"loo"`` or by ``"elbo"``, the paper's bound.

    Args:
        train_X: ``n x d`` inputs.
        train_y: ``n`` observations.
        inducing: number of inducing points to choose among the rows, or ``m x d`` points.
        selection: ``"kmeans"``, rows spread out by k-means++, or ``"greedy"``, the rows of largest variance given the
            points before; see :func:`rcgp.models.inducing.choose_inducing`. Greedy depends on the kernel: use it for
            known hyperparameters, since long lengthscales need few points and end it early.
        train_inducing: fit the points along with the hyperparameters.
        **options: ``kernel``, ``mean``, ``weight``, ``noise`` and ``sample_weight`` of :class:`RCGP`.

    Raises:
        ValueError: as for :class:`RCGP`, and for inducing points of another dimension, NaN or infinite.

    Example:
        >>> X = torch.linspace(0, 6, 2000, dtype=torch.float64).unsqueeze(-1)
        >>> y = torch.sin(X.squeeze(-1))
        >>> model = SparseRCGP(X, y, inducing=20)
        >>> model.inducing_points.shape
        torch.Size([20, 1])
    """

    #: An estimator of many rows learns it on a sample.
    has_local_noise = False

    inducing_points: Tensor

    def __init__(
        self,
        train_X: Tensor,
        train_y: Tensor,
        *,
        inducing: int | Tensor = 500,
        selection: str = "kmeans",
        train_inducing: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(train_X, train_y, **options)
        check_selection(selection)  # also if points are given and it is not used
        points = self._points(inducing, selection)
        if train_inducing:
            self.register_parameter("inducing_points", torch.nn.Parameter(points))
        else:
            self.register_buffer("inducing_points", points)

    def choose_inducing(self, count: int | None = None, selection: str = "greedy", seed: int = 0) -> None:
        """Choose new inducing points, by the kernel at its present hyperparameters.

        Args:
            count: number of points; ``None`` keeps the number.
            selection, seed: see :func:`rcgp.models.inducing.choose_inducing`.
        """
        chosen = self._points(self.inducing_count() if count is None else count, selection, seed)
        if isinstance(self.inducing_points, torch.nn.Parameter):
            self.inducing_points = torch.nn.Parameter(chosen, requires_grad=self.inducing_points.requires_grad)
        else:
            self.inducing_points = chosen

    def inducing_count(self) -> int:
        """Number of inducing points."""
        return self.inducing_points.shape[0]

    def _points(self, inducing: int | Tensor, selection: str, seed: int = 0) -> Tensor:
        """The given inducing points, or that number of rows."""
        points = check_inducing(inducing, self.train_X)
        if isinstance(points, Tensor):
            return points
        return choose_inducing(self.kernel, self.train_X, points, selection, seed)

    def rows(self) -> Rows:
        """The training inputs seen through the inducing points, at the present hyperparameters. Cost m³/3."""
        return Rows(self.kernel, self.train_X, self.inducing_points)

    def latent_leave_one_out(self, pseudo: PseudoData) -> LeaveOneOut:
        """Leave-one-out moments of f(x_i), relative to the prior mean; differentiable. Cost O(nm²)."""
        found, unseen = sparse_moments(self.rows(), pseudo)
        return leave_one_out_sparse(found, pseudo, unseen)

    def signal_evidence(self, pseudo: PseudoData) -> Tensor:
        """The bound on ℓ; differentiable. Cost O(nm²)."""
        return signal_bound_of(self.rows(), pseudo)

    def kernel_matrix(self) -> Tensor:
        """Raises TypeError: only an exact model has an n x n kernel matrix."""
        raise TypeError("a sparse model has no n x n kernel matrix: this is for RCGP, the exact model")

    def start_rows(self) -> None:
        """A fit tries its starts on all rows."""

    def parameter_scales(self) -> dict[torch.nn.Parameter, Tensor]:
        """Inducing points have the units of the inputs."""
        points = self.inducing_points
        return {points: column_scales(self.train_X).expand_as(points)} if isinstance(points, torch.nn.Parameter) else {}

    def hyperparameters(self) -> dict[str, Tensor]:
        """As :meth:`RCGP.hyperparameters`, without inducing points."""
        values = super().hyperparameters()
        values.pop("inducing_points", None)
        return values

    def _support(self) -> Tensor:
        return self.inducing_points.detach()

    def _condition(self) -> SparsePosterior:
        """The prior conditioned on the training data. Cost O(nm²)."""
        rows = self.rows()
        return condition_sparse(rows.L, rows.statistics(self.training_terms().pseudo))


class SparseMultiOutputRCGP(SparseRCGP, MultiOutputRCGP):
    """:class:`MultiOutputRCGP` seen through m inducing points, each with all T outputs: O(N m²T²) instead of O(N³).

    Weights, noise laws and missing cells are those of :class:`MultiOutputRCGP`, the approximation that of
    :class:`SparseRCGP`; with all inputs as inducing points it is exact. Rows are processed in blocks.
    :func:`rcgp.fit_robust` learns noise laws, weights and hyperparameters.

    Args:
        train_X: ``n x d`` inputs.
        train_Y: ``n x T`` observations, NaN where a cell is not observed; or ``n`` with ``output``, the long format.
        inducing: number of inducing points to choose among the inputs, or ``m x d`` points.
        selection: as for :class:`SparseRCGP`; greedy uses the kernel of the first term.
        **options: ``output``, ``kernel``, ``terms``, ``rank``, ``mean``, ``weight``, ``noise`` and ``sample_weight`` of
            :class:`MultiOutputRCGP`.
    """

    def __init__(
        self,
        train_X: Tensor | ArrayLike,
        train_Y: Tensor | ArrayLike,
        *,
        inducing: int | Tensor = 100,
        selection: str = "kmeans",
        **options: Any,
    ) -> None:
        if options.pop("train_inducing", False):
            raise ValueError("inducing points that outputs share cannot be trained: leave train_inducing out")
        super().__init__(train_X, train_Y, inducing=inducing, selection=selection, **options)  # type: ignore[arg-type]

    def inducing_count(self) -> int:
        """Number of inducing points, each with all outputs."""
        return self.inducing_points.shape[0] // self.outputs

    def parameter_scales(self) -> dict[torch.nn.Parameter, Tensor]:
        """As :meth:`MultiOutputRCGP.parameter_scales`."""
        return MultiOutputRCGP.parameter_scales(self)

    def _points(self, inducing: int | Tensor, selection: str, seed: int = 0) -> Tensor:
        inputs = self._cell_layout()[0]
        points = check_inducing(inducing, inputs)
        if not isinstance(points, Tensor):
            if selection == "greedy" and not isinstance(self.kernel, CoregionKernel):
                raise ValueError("selection='greedy' needs kernels of one output; use 'kmeans'")
            first = self.kernel.kernels[0] if isinstance(self.kernel, CoregionKernel) else self.kernel
            points = choose_inducing(first, inputs, points, selection, seed)
        every = torch.arange(self.outputs, device=points.device)
        return with_output(points.unsqueeze(-2).expand(len(points), self.outputs, -1), every).flatten(0, 1)
