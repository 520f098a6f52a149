"""Several outputs through inducing points that they share: for more cells than an N x N matrix can hold."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from rcgp.models.coregion import CoregionKernel, with_output
from rcgp.models.inducing import choose_inducing
from rcgp.models.outputs import MultiOutputRCGP
from rcgp.models.sparse import SparseRCGP
from rcgp.models.validation import check_inducing

__all__ = ["SparseMultiOutputRCGP"]


class SparseMultiOutputRCGP(SparseRCGP, MultiOutputRCGP):
    """:class:`MultiOutputRCGP` seen through m inducing points, each with all T outputs: O(N m²T²) instead of O(N³).

    Weights, noise laws and missing cells are as there, the approximation as in :class:`SparseRCGP`; with all inputs as
    inducing points it is :class:`MultiOutputRCGP`. Rows are looked at in blocks. :func:`rcgp.fit_robust` learns noise
    laws, weights and hyperparameters.

    Args:
        train_X: ``n x d`` inputs.
        train_Y: ``n x T`` observations, NaN where a cell is not observed; or ``n`` with ``output``, the long format.
        inducing: how many inducing points to choose among the inputs, or ``m x d`` points.
        selection: as for :class:`SparseRCGP`; greedy goes by the kernel of the first term.
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
        """How many inducing points there are, each with all outputs."""
        return self.inducing_points.shape[0] // self.outputs

    def parameter_scales(self) -> dict[torch.nn.Parameter, Tensor]:
        """Those of the factors of the outputs' covariance: see :meth:`RCGP.parameter_scales`."""
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
