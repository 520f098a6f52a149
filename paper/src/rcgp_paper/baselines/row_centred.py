"""MO-RCGP's rule: inverse multiquadric weights of cells, centred on the prediction from other outputs.

With B the prior covariance of the outputs at one input, Σ the diagonal matrix of their noise variances and μ the prior
mean, the centre of output d in row i is, over the other observed outputs −d of the row,

    γ_id = μ_d + B_{d,−d} (B_{−d,−d} + Σ_{−d})⁻¹ (y_{i,−d} − μ_{−d}).
"""

from __future__ import annotations

import torch
from torch import Tensor

from rcgp import MultiOutputRCGP, fit
from rcgp.core.pseudo import pseudo_data
from rcgp.models import TrainingTerms
from rcgp.models.coregion import CoregionKernel
from rcgp.training import FitReport

__all__ = ["RowCentredGP"]


class RowCentredGP(MultiOutputRCGP):
    """The multi-output GP whose weights are centred by MO-RCGP's rule; arguments as for :class:`rcgp.MultiOutputRCGP`.

    Its prior is one of coregionalisation, and its table the wide format.
    """

    def fit(self, max_iterations: int = 1000) -> FitReport:
        """Choose the hyperparameters by leave-one-out, the paper's objective. Cost O(N³) for each evaluation."""
        return fit(self, "loo", max_iterations=max_iterations)

    def training_terms(self) -> TrainingTerms:
        """Residuals, weights and pseudo-data at the current hyperparameters, differentiable. Cost O(n T⁴)."""
        e, noise, row_noise = self.residual(), self.noise, self.row_noise()
        moved = e - self._centres(e, noise)
        w = self.weight(moved, self.train_X, noise)
        slope = self.weight.slope(moved, self.train_X, noise)
        return TrainingTerms(e, w, slope, noise, row_noise, pseudo_data(e, w, slope, row_noise))

    def weights(self) -> Tensor:
        """Weight w̃ of each cell, ``N``."""
        with torch.no_grad():
            return self.training_terms().weight

    def _centres(self, residual: Tensor, noise: Tensor) -> Tensor:
        """γ of each cell, relative to the prior mean: ``N``."""
        kernel: CoregionKernel = self.kernel
        B = torch.stack(kernel.covariances()).sum(dim=0)
        observed, T = self.observed, self.outputs
        table = residual.new_zeros(observed.shape)
        table[observed] = residual
        A = B + torch.diag(noise)
        centres = []
        for d in range(T):
            used = observed.clone()
            used[:, d] = False  # n x T: the other observed outputs
            known = used.unsqueeze(-1) & used.unsqueeze(-2)
            M = torch.where(known, A, torch.eye(T, dtype=A.dtype))  # missing outputs decouple
            solved = torch.linalg.solve(M, torch.where(used, table, 0.0).unsqueeze(-1)).squeeze(-1)
            centres.append((torch.where(used, B[d], 0.0) * solved).sum(dim=-1))
        return torch.stack(centres, dim=-1)[observed]
