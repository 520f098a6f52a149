"""The robust conjugate GP of several outputs: one model of all observed cells, each with a weight of its own.

A cell is an output t observed at an input x. Cells are the rows of an ordinary :class:`rcgp.RCGP` with inputs (x, t)
and a kernel that correlates outputs (:mod:`rcgp.models.coregion`); a missing cell is not a row. Each output has its
own prior mean, noise variance, noise law and weight function. So everything that holds for rows holds for cells:
Proposition 3.1 with diagonal W̃ over cells, leave-one-cell-out, and the robust fit.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import gpytorch
import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from rcgp.core.exact import LeaveOneOut
from rcgp.models.cells import Cells, arranged, cell_weights
from rcgp.models.coregion import CoregionKernel, OutputKernel, build_output_kernel, with_output
from rcgp.models.defaults import longest_lengthscale, typical_gap
from rcgp.models.exact import MANY_ROWS, RCGP, START_ROWS
from rcgp.models.kernel_matrix import correlations, dense_kernel
from rcgp.models.local_noise import LocalFactor, LocalNoiseOfOutputs
from rcgp.models.means import MeanLike, OutputMeans, build_mean
from rcgp.models.posterior import MultiOutputNormal, PosteriorNormal
from rcgp.models.validation import as_real_tensor, check_sample_weight, check_test_inputs
from rcgp.weights import ByOutput, InverseMultiquadric, LawWeight, NoiseLaw, WeightFunction

__all__ = ["MultiOutputRCGP"]


class MultiOutputRCGP(RCGP):
    """Robust and conjugate Gaussian process regression of several outputs, with missing cells and weights per cell.

    The prior is a linear model of coregionalisation, with Q terms of T x T matrices B_q = W_q W_qᵀ + diag(v_q)::

        Cov(f_t(x), f_t'(x')) = Σ_q B_q[t, t'] k_q(x, x')

    Everything else is :class:`RCGP` over the N observed cells: a bad cell is down-weighted alone, and the other outputs
    of its row help to recognise it. :func:`rcgp.fit_robust` learns a noise law for each output.

    Args:
        train_X: ``n x d`` inputs.
        train_Y: ``n x T`` observations; NaN for a missing cell. Or, with ``output``, ``n`` observations of one output
            each: the long format, for outputs that are observed at different inputs.
        output: ``n`` numbers of outputs, from 0 to T − 1, for the long format.
        kernel: a GPyTorch kernel of d columns; a list of them, one for each term; or a GPyTorch kernel with T outputs,
            such as ``MultitaskKernel`` or ``LCMKernel``. Default: squared exponentials with a lengthscale for each
            input dimension that is not constant, initialised at the scales of the data.
        terms: number Q of terms. Default: the number of given kernels, else one: intrinsic coregionalisation.
        rank: number of columns of each W_q, from 0 (independent outputs) to T. Default: T, and 0 for one output.
        mean: prior mean of each output, as for :class:`RCGP` but the median by default; or a list of T of them.
        weight: a weight function, copied for each output, or a list of T of them. Default:
            ``InverseMultiquadric()``.
        noise: initial value of the noise variance, or T of them. Default: a tenth of each output's squared spread.
        sample_weight: ``n`` positive factors on the precision of each row, or ``n x T`` of each cell.

    Raises:
        ValueError: for data of other shapes or not finite, outputs without an observed cell, invalid numbers of
            outputs, and a rank above T.

    An evaluation costs O(N³) for N observed cells and a few N x N matrices of memory.

    Example:
        >>> X = torch.linspace(0, 6, 40, dtype=torch.float64).unsqueeze(-1)
        >>> Y = torch.cat([X.sin(), X.sin() + X.cos()], dim=-1)
        >>> Y[10, 0], Y[20, 1] = 25.0, torch.nan
        >>> model = MultiOutputRCGP(X, Y)
        >>> int(model.cells(model.weights()).nan_to_num(1.0).argmin())  # row 10, output 0
        20
    """

    # Training inputs with their version, and their :meth:`_cell_layout`.
    _layout: tuple[tuple[Tensor, int], tuple[Tensor, Tensor, Tensor, Tensor]] | None = None

    def __init__(
        self,
        train_X: Tensor | ArrayLike,
        train_Y: Tensor | ArrayLike,
        *,
        output: Tensor | ArrayLike | None = None,
        kernel: gpytorch.kernels.Kernel | Sequence[gpytorch.kernels.Kernel] | None = None,
        terms: int | None = None,
        rank: int | None = None,
        mean: MeanLike | Sequence[MeanLike] = "median",
        weight: WeightFunction | Sequence[WeightFunction] | None = None,
        noise: float | Tensor | Sequence[float] | None = None,
        sample_weight: Tensor | ArrayLike | None = None,
    ) -> None:
        cells = Cells.of(train_X, train_Y, output)
        tables = [cells.of_output(t) for t in range(cells.outputs)]
        means = [build_mean(m, *table) for m, table in zip(_for_each(mean, len(tables), "mean"), tables, strict=True)]
        with torch.no_grad():
            residual = [y - m.to(x)(x) for m, (x, y) in zip(means, tables, strict=True)]
        weights = _for_each(InverseMultiquadric() if weight is None else weight, cells.outputs, "weight")
        if not all(isinstance(part, WeightFunction) for part in weights):
            raise TypeError(f"weight must be a WeightFunction of rcgp.weights, or one for each output, got {weight!r}")
        super().__init__(
            with_output(cells.X, cells.output),
            cells.y,
            kernel=build_output_kernel(kernel, cells, residual, terms, rank),
            mean=OutputMeans(means),
            weight=ByOutput(*weights),
            noise=noise,  # type: ignore[arg-type]
            sample_weight=cell_weights(sample_weight, cells.observed),
        )
        #: Which cells are observed: ``n x T``, or ``n`` in the long format.
        self.observed = cells.observed

    @property
    def outputs(self) -> int:
        """Number T of outputs."""
        return len(self.mean.means)

    def cells(self, values: Tensor) -> Tensor:
        """One value for each observed cell, ``N``, arranged like ``train_Y``, NaN for missing cells."""
        return arranged(values, self.observed)

    def posterior(
        self, test_X: Tensor, observation_noise: bool = False, outputs: Sequence[int] | None = None
    ) -> MultiOutputNormal:
        """Posterior of f, or of new observations, of all outputs or some at test inputs.

        Args:
            test_X: ``... x q x d`` inputs.
            observation_noise: as for :meth:`RCGP.posterior`.
            outputs: numbers of the outputs. Default: all.

        Returns:
            A GPyTorch ``MultitaskMultivariateNormal`` over ``q x T`` values. Cost as for :meth:`RCGP.posterior` with
            qT points.
        """
        x = check_test_inputs(test_X, self.train_X[:, :-1])
        chosen = self._check_outputs(range(self._known_outputs()) if outputs is None else outputs)
        pairs = with_output(x.unsqueeze(-2).expand(*x.shape[:-1], len(chosen), x.shape[-1]), chosen)
        joint = super().posterior(pairs.flatten(-3, -2), observation_noise)
        return MultiOutputNormal(joint.mean.unflatten(-1, (-1, len(chosen))), joint.lazy_covariance_matrix)

    def inputs_of(self, x: Tensor, output: Tensor | ArrayLike) -> Tensor:
        """Inputs (x, t), ``... x q x (d + 1)``, of ``... x q x d`` inputs and ``q`` outputs, or one for all."""
        chosen = self._check_outputs(output)
        if len(chosen) not in (1, x.shape[-2]):
            raise ValueError(
                f"output must be one number, or one for each of the {x.shape[-2]} inputs, got {len(chosen)}"
            )
        return with_output(x, chosen)

    def set_cells(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        sample_weight: Tensor | None = None,
        output: Tensor | ArrayLike | None = None,
    ) -> None:
        """Replace the data, in either format. A learned weight function must then be learned again."""
        cells = Cells.of(train_X, train_Y, output)
        if cells.outputs != self.outputs:
            raise ValueError(f"train_Y must have {self.outputs} outputs, got {cells.outputs}")
        X, precision = with_output(cells.X, cells.output).to(self.train_X), cell_weights(sample_weight, cells.observed)
        if precision is not None:
            precision = check_sample_weight(precision, X)
        self.train_X, self.train_y, self.sample_weight = X, cells.y.to(self.train_y), precision
        self.observed = cells.observed

    def posterior_of_cells(
        self, test_X: Tensor, output: Tensor | ArrayLike, observation_noise: bool = False
    ) -> PosteriorNormal:
        """Posterior of one output at each input: the long format.

        Args:
            test_X: ``... x q x d`` inputs.
            output: ``q`` numbers of outputs, or one for all.
            observation_noise: as for :meth:`RCGP.posterior`.
        """
        x = check_test_inputs(test_X, self.train_X[:, :-1])
        return super().posterior(self.inputs_of(x, output), observation_noise)

    def forward(self, test_X: Tensor) -> MultiOutputNormal:
        """``model(test_X)`` is ``model.posterior(test_X)``."""
        return self.posterior(test_X)

    @property
    def output_covariance(self) -> Tensor:
        """Prior covariance of the outputs at one input, averaged over the training inputs: ``T x T``."""
        with torch.no_grad():
            points = self._cell_layout()[0]
            outputs = self._check_outputs(range(self._known_outputs()))
            x = with_output(points.unsqueeze(-2).expand(len(points), len(outputs), points.shape[-1]), outputs)
            return dense_kernel(self.kernel, x, x).mean(dim=0)

    @property
    def output_correlation(self) -> Tensor:
        """Correlations of the outputs at one input, ``T x T``."""
        return correlations(self.output_covariance)

    def kernel_matrix(self) -> Tensor:
        """Kernel matrix of the observed cells, ``N x N``, differentiable. Cost O(N²)."""
        points, row, output, _ = self._cell_layout()
        kernel: OutputKernel = self.kernel
        return kernel.matrix(points, row, output)

    def output_rows(self) -> tuple[Tensor, ...]:
        """The training rows of each output."""
        output = self.train_X[:, -1]
        return tuple((output == t).nonzero().squeeze(-1) for t in range(self.outputs))

    def output_weights(self) -> tuple[WeightFunction, ...]:
        """The weight function of each output."""
        return self.weight.outputs if isinstance(self.weight, ByOutput) else (self.weight,) * self.outputs

    def for_inputs(self, values: Tensor, x: Tensor) -> Tensor:
        """Values of the outputs, ``T``, for the outputs t of ``... x q x (d + 1)`` inputs (x, t): ``... x q``."""
        return values[x[..., -1].long()]

    def weight_by_law(self, laws: Sequence[NoiseLaw], cavity: LeaveOneOut, h: Tensor) -> WeightFunction:
        """The weight function of learned noise laws, one for each output: see :meth:`RCGP.weight_by_law`."""
        parts = (*cavity, h, self.relative_noise())
        return ByOutput(
            *(
                LawWeight(law, *(part[rows] for part in parts))
                for law, rows in zip(laws, self.output_rows(), strict=True)
            )
        )

    def local_noise_of(self, outputs: Sequence[LocalFactor]) -> LocalFactor:
        """The local factor at inputs (x, t), given that of each output."""
        return LocalNoiseOfOutputs(tuple(outputs))

    def frozen_weight(self) -> ByOutput:
        """A copy of the weight function whose thresholds are held at their values for the training data."""
        residual = self.residual()
        return ByOutput(
            *(part.frozen(residual[rows]) for part, rows in zip(self.output_weights(), self.output_rows(), strict=True))
        )

    def weight_of_row(self, row: int) -> WeightFunction:
        """The weight function of one cell, for any number of values of its observation."""
        parts, output = list(self.frozen_weight().outputs), int(self.train_X[row, -1])
        number = self._cell_layout()[3]
        parts[output] = parts[output].of_row(int(number[row]))
        return ByOutput(*parts)

    def nearest_rows(self) -> Tensor:
        """Nearest row of the same output of each row, by the kernel's correlation, ``N``. Cost O(N²)."""
        output = self.train_X[:, -1]
        near = correlations(self.kernel_matrix()).fill_diagonal_(-torch.inf)
        return near.masked_fill(output != output.unsqueeze(-1), -torch.inf).argmax(dim=-1)

    def start_rows(self) -> Tensor | None:
        """Sample of many rows on which a fit tries its starts: all cells of every k-th input by residual.

        It has a cell of each output. ``None`` for all rows.
        """
        points, row, _, _ = self._cell_layout()
        wanted = round(START_ROWS * self.outputs * len(points) / len(row))
        if MANY_ROWS * wanted >= START_ROWS * len(points):
            return None
        with torch.no_grad():
            residual = self.residual() / self.row_spread().to(self.train_y)
        largest = residual.new_zeros(len(points)).scatter_reduce_(0, row, residual, "amax", include_self=False)
        keys = torch.cat([points, largest.unsqueeze(-1)], dim=-1)
        order = np.lexsort(keys.T.cpu().numpy())  # by residual first
        kept = torch.zeros(len(points), dtype=torch.bool, device=row.device)
        kept[torch.from_numpy(order[np.linspace(0.0, len(points) - 1.0, wanted).round().astype(np.int64)])] = True
        chosen = kept[row]
        for rows in self.output_rows():
            if not bool(chosen[rows].any()):
                chosen[rows[residual[rows].abs().argmin()]] = True
        return chosen.nonzero().squeeze(-1)

    def parameter_scales(self) -> dict[torch.nn.Parameter, Tensor]:
        """W_q has the units of its outputs: see :meth:`RCGP.parameter_scales`."""
        if not isinstance(self.kernel, CoregionKernel):
            return super().parameter_scales()
        spread = self.spreads().unsqueeze(-1)
        return {factor: spread.expand_as(factor).to(factor) for factor in self.kernel.factors()}

    def _noise_shape(self) -> tuple[int, ...]:
        return (self.outputs,)

    def typical_gap(self) -> float:
        """As :meth:`RCGP.typical_gap`, of the inputs of cells."""
        X = self.train_X[:, :-1]
        return typical_gap(X) / longest_lengthscale(self.kernel, X)

    def _known_outputs(self) -> int:
        """Number of outputs that can be predicted."""
        return self.outputs

    def _check_outputs(self, outputs: Any) -> Tensor:
        """Numbers of outputs as the last column of inputs; or a ValueError."""
        known = self._known_outputs()
        chosen = as_real_tensor(list(outputs) if isinstance(outputs, range) else outputs, "outputs").reshape(-1)
        if not chosen.numel() or bool(((chosen < 0) | (chosen >= known) | (chosen != chosen.round())).any()):
            raise ValueError(f"outputs must be whole numbers from 0 to {known - 1}, got {chosen.tolist()}")
        return chosen.to(self.train_X)

    def _cell_layout(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Distinct inputs, ``n x d``; and for each cell the number of its input, of its output, and within its output.

        Kept until the rows change.
        """
        key = self.train_X, self.train_X._version
        if self._layout is None or self._layout[0][0] is not key[0] or self._layout[0][1] != key[1]:
            points, row = torch.unique(self.train_X[:, :-1], dim=0, return_inverse=True)
            output = self.train_X[:, -1].long()
            number = torch.empty_like(output)
            for rows in self.output_rows():
                number[rows] = torch.arange(len(rows), device=rows.device)
            self._layout = key, (points, row, output, number)
        return self._layout[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_layout": None}


def _for_each(value: Any, outputs: int, name: str) -> list[Any]:
    """A value for each output: the given ones, or copies of a single one."""
    if not isinstance(value, list | tuple):
        return [copy.deepcopy(value) for _ in range(outputs)]
    if len(value) != outputs:
        raise ValueError(f"{name} must be one for all outputs or one for each of the {outputs}, got {len(value)}")
    return [copy.deepcopy(part) if any(part is other for other in value[:i]) else part for i, part in enumerate(value)]
