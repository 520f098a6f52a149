"""Linear maps of a function, as rows of a model: averages, sums, differences or integrals by quadrature.

With the points P and the coefficients A, row j is g_j = Σ_i a_ji f(p_i). The g are jointly normal with f::

    E g = A m(P),      Cov(g, g) = A k(P, P) Aᵀ,      Cov(g, f(x)) = A k(P, x)

The inputs of kernel and mean are rows (j, x): for j ≥ 0 the sum g_j, placed at x; for j = −1 the
value f(x).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpytorch
import torch
from torch import Tensor

from rcgp.models.kernel_matrix import dense_kernel, kernel_matrix

__all__ = ["FunctionalKernel", "FunctionalMean", "LinearMap"]

# Share of nonzero coefficients below which a sparse product with its gradient is faster than a dense one.
_SPARSE = 0.02

# Sums whose variances are computed at a time.
_ROWS = 32


class LinearMap(torch.nn.Module):
    """Nonzero coefficients of J sums over m points.

    Args:
        points: ``M x d`` points. Equal points become one.
        row: ``N`` numbers of sums, from 0.
        point: ``N`` numbers of points.
        coefficient: ``N`` coefficients; coefficients of the same sum and point are added.
    """

    points: Tensor
    row: Tensor
    point: Tensor
    coefficient: Tensor

    def __init__(self, points: Tensor, row: Tensor, point: Tensor, coefficient: Tensor) -> None:
        super().__init__()
        points, number = torch.unique(points, dim=0, return_inverse=True)
        size = int(row.max()) + 1, len(points)
        merged = _sparse(row, number[point], coefficient, size).coalesce()
        self.count = size[0]
        for name, values in (
            ("points", points),
            ("row", merged.indices()[0]),
            ("point", merged.indices()[1]),
            ("coefficient", merged.values()),
        ):
            self.register_buffer(name, values, persistent=False)

    def of_rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Coefficients of some sums, ``b x m'``, dense or sparse, and their points, ``m' x d``.

        Args:
            rows: ``b`` numbers of different sums.
        """
        place = torch.full((self.count,), -1, device=rows.device)
        place[rows] = torch.arange(len(rows), device=rows.device)
        kept = place[self.row] >= 0
        used, column = torch.unique(self.point[kept], return_inverse=True)
        size = len(rows), len(used)
        A = _sparse(place[self.row[kept]], column, self.coefficient[kept], size)
        A = A if len(column) < _SPARSE * size[0] * size[1] else A.to_dense()
        return A, self.points[used]

    def sums_of(self, values: Tensor) -> Tensor:
        """Σ_i a_ji v_i for ``m`` values at the points: ``J``."""
        terms = self.coefficient * values[self.point]
        return terms.new_zeros(self.count).index_add(0, self.row, terms)

    def totals(self) -> Tensor:
        """Σ_i a_ji of each sum, ``J``: one for averages."""
        return self.sums_of(torch.ones_like(self.points[:, 0]))

    def inputs(self) -> Tensor:
        """Rows (j, x) of all sums, ``J x (1 + d)``; x is the mean of their points, weighted by |a_ji|."""
        size = LinearMap(self.points, self.row, self.point, self.coefficient.abs())
        centres = torch.stack([size.sums_of(column) for column in self.points.T], dim=-1) / size.totals().unsqueeze(-1)
        return torch.cat([torch.arange(self.count).to(centres).unsqueeze(-1), centres], dim=-1)

    def joined(self, other: LinearMap) -> LinearMap:
        """These sums, followed by the sums of another map."""
        return LinearMap(
            torch.cat([self.points, other.points.to(self.points)]),
            torch.cat([self.row, other.row + self.count]),
            torch.cat([self.point, other.point + len(self.points)]),
            torch.cat([self.coefficient, other.coefficient.to(self.coefficient)]),
        )


class FunctionalMean(gpytorch.means.Mean):  # type: ignore[misc]
    """The prior mean of rows (j, x), for a mean of points."""

    def __init__(self, base: gpytorch.means.Mean, sums: LinearMap) -> None:
        super().__init__()
        self.base, self.sums = base, sums

    def forward(self, x: Tensor) -> Tensor:
        number, points = _parted(x)
        if bool((number < 0).all()):
            value: Tensor = self.base(points)
            return value
        of_sums = self.sums.sums_of(self.base(self.sums.points))[number.clamp_min(0)]
        return of_sums if bool((number >= 0).all()) else torch.where(number >= 0, of_sums, self.base(points))


class FunctionalKernel(gpytorch.kernels.Kernel):  # type: ignore[misc]
    """The kernel of rows (j, x), for a kernel of points.

    An evaluation costs O(m²) kernel values for the m points of the sums, and the products with A.
    """

    def __init__(self, base: gpytorch.kernels.Kernel, sums: LinearMap) -> None:
        super().__init__()
        self.base, self.sums = base, sums

    def matrix(self, rows: Tensor) -> Tensor:
        """A k(P, P) Aᵀ of different sums, ``b x b``, differentiable in the kernel's parameters."""
        A, points = self.sums.of_rows(rows)
        return A @ (A @ kernel_matrix(self.base, points)).mT

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        if diag:
            return self._diagonal(x1, x2)
        same = x1 is x2 or torch.equal(x1, x2)
        (j1, p1), (j2, p2) = _parted(x1), _parted(x2)
        p2 = p1 if same else p2
        first, second = (j1 >= 0).unsqueeze(-1), (j2 >= 0).unsqueeze(-2)
        cases: tuple[tuple[Tensor, Callable[[], Tensor]], ...] = (
            (~first & ~second, lambda: dense_kernel(self.base, p1, p2)),
            (~first & second, lambda: self._with_points(p1, j2)),
            (first & ~second, lambda: self._with_points(p2, j1).mT),
            (first & second, lambda: self._between(j1, j2)),
        )
        K: Tensor | None = None
        for wanted, block in cases:
            if bool(wanted.any()):
                K = block() if K is None else torch.where(wanted, block(), K)
        return x1.new_zeros(*x1.shape[:-1], x2.shape[-2]) if K is None else K

    def _with_points(self, points: Tensor, number: Tensor) -> Tensor:
        """Cov(f(x), g_j) for ``... x q x d`` points and ``... x p`` numbers: ``... x q x p``. Undefined for j = −1."""
        rows, place = torch.unique(number.clamp_min(0), return_inverse=True)
        A, support = self.sums.of_rows(rows)
        K = dense_kernel(self.base, points.reshape(-1, points.shape[-1]), support)
        found = (A @ K.mT).mT.reshape(*points.shape[:-1], len(rows))
        batch = torch.broadcast_shapes(found.shape[:-2], place.shape[:-1])  # type: ignore[no-untyped-call]
        found = found.expand(*batch, *found.shape[-2:])
        return found.gather(-1, place.unsqueeze(-2).expand(*found.shape[:-1], place.shape[-1]))

    def _between(self, j1: Tensor, j2: Tensor) -> Tensor:
        """Cov(g_j, g_j') for ``... x q`` and ``... x p`` numbers: ``... x q x p``. Undefined where one is −1."""
        (rows1, place1), (rows2, place2) = (torch.unique(j.clamp_min(0), return_inverse=True) for j in (j1, j2))
        if torch.equal(rows1, rows2):
            K = self.matrix(rows1)
        else:
            (A1, p1), (A2, p2) = self.sums.of_rows(rows1), self.sums.of_rows(rows2)
            K = (A2 @ (A1 @ dense_kernel(self.base, p1, p2)).mT).mT
        return K[place1.unsqueeze(-1), place2.unsqueeze(-2)]

    def _diagonal(self, x1: Tensor, x2: Tensor) -> Tensor:
        """The kernel between each row of x1 and the same row of x2."""
        number, points = _parted(x1)
        if not torch.equal(x1, x2):
            return self.forward(x1.unsqueeze(-2), x2.unsqueeze(-2))[..., 0, 0]
        found: Tensor = self.base(points, diag=True)
        if bool((number >= 0).any()):
            rows, place = torch.unique(number.clamp_min(0), return_inverse=True)
            variances = torch.cat([self.matrix(part).diagonal() for part in torch.split(rows, _ROWS)])
            found = torch.where(number >= 0, variances[place], found)
        return found


def _sparse(row: Tensor, column: Tensor, values: Tensor, size: tuple[int, int]) -> Tensor:
    return torch.sparse_coo_tensor(torch.stack([row, column]), values, size, check_invariants=False)


def _parted(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows ``... x n x (1 + d)`` as numbers ``... x n`` and points ``... x n x d``."""
    return x[..., 0].long(), x[..., 1:]
