"""The numbers that the paper prints, to set ours beside."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["CONTAMINATIONS", "DATA", "TABLE_1", "TABLE_2", "TABLE_C_LOO", "TABLE_SPARSE"]


DATA = ("synthetic", "boston", "energy", "yacht")
CONTAMINATIONS = ("clean", "focused", "asymmetric", "uniform")


def _row(*cells: tuple[float, float]) -> Mapping[str, tuple[float, float]]:
    """A row of the paper's tables by method: each a mean and its standard deviation."""
    return MappingProxyType(dict(zip(("gp", "rcgp", "t-gp", "m-gp"), cells, strict=True)))


#: Mean absolute error and its standard deviation over 50 repetitions: (contamination, data) to method to both.
TABLE_1: Mapping[tuple[str, str], Mapping[str, tuple[float, float]]] = MappingProxyType(
    {
        ("clean", "synthetic"): _row((0.09, 0.00), (0.09, 0.00), (0.09, 0.00), (0.33, 0.00)),
        ("clean", "boston"): _row((0.19, 0.01), (0.19, 0.01), (0.19, 0.01), (0.28, 0.00)),
        ("clean", "energy"): _row((0.03, 0.00), (0.02, 0.00), (0.03, 0.00), (0.61, 0.00)),
        ("clean", "yacht"): _row((0.02, 0.01), (0.02, 0.01), (0.01, 0.00), (0.33, 0.00)),
        ("focused", "synthetic"): _row((0.19, 0.00), (0.15, 0.00), (0.18, 0.00), (0.23, 0.00)),
        ("focused", "boston"): _row((0.23, 0.06), (0.22, 0.01), (0.27, 0.00), (0.27, 0.00)),
        ("focused", "energy"): _row((0.03, 0.04), (0.02, 0.00), (0.03, 0.05), (0.24, 0.00)),
        ("focused", "yacht"): _row((0.26, 0.15), (0.10, 0.14), (0.20, 0.04), (0.24, 0.00)),
        ("asymmetric", "synthetic"): _row((1.14, 0.00), (0.63, 0.00), (1.06, 0.00), (0.61, 0.00)),
        ("asymmetric", "boston"): _row((0.63, 0.02), (0.49, 0.00), (0.52, 0.00), (0.52, 0.00)),
        ("asymmetric", "energy"): _row((0.54, 0.02), (0.44, 0.04), (0.42, 0.02), (0.41, 0.00)),
        ("asymmetric", "yacht"): _row((0.54, 0.06), (0.35, 0.02), (0.41, 0.00), (0.40, 0.00)),
        ("uniform", "synthetic"): _row((0.34, 0.00), (0.21, 0.00), (0.30, 0.00), (0.27, 0.00)),
        ("uniform", "boston"): _row((0.53, 0.13), (0.51, 0.12), (0.30, 0.01), (0.24, 0.00)),
        ("uniform", "energy"): _row((0.25, 0.03), (0.24, 0.03), (0.23, 0.05), (0.23, 0.00)),
        ("uniform", "yacht"): _row((0.36, 0.16), (0.29, 0.07), (0.16, 0.00), (0.34, 0.00)),
    }
)

#: Clock time of a fit in seconds, on the authors' machine, and its standard deviation over 50 repetitions.
TABLE_2: Mapping[str, Mapping[str, tuple[float, float]]] = MappingProxyType(
    {
        "synthetic": _row((1.5, 0.1), (1.2, 0.0), (2.2, 0.0), (3.0, 0.0)),
        "boston": _row((1.9, 0.5), (5.1, 0.9), (30.7, 6.1), (16.7, 1.7)),
        "energy": _row((3.8, 0.9), (4.6, 2.0), (34.0, 11.0), (33.8, 0.3)),
        "yacht": _row((1.6, 0.3), (2.1, 0.2), (5.6, 0.7), (4.5, 0.4)),
    }
)

#: Mean absolute error with c chosen by leave-one-out; GP and the quantile rule are as in Table 1.
TABLE_C_LOO: Mapping[tuple[str, str], tuple[float, float]] = MappingProxyType(
    {
        ("clean", "synthetic"): (0.09, 0.00),
        ("clean", "boston"): (0.19, 0.01),
        ("clean", "energy"): (0.02, 0.00),
        ("clean", "yacht"): (0.02, 0.01),
        ("focused", "synthetic"): (0.17, 0.00),
        ("focused", "boston"): (0.22, 0.03),
        ("focused", "energy"): (0.02, 0.00),
        ("focused", "yacht"): (0.11, 0.13),
        ("asymmetric", "synthetic"): (1.08, 0.00),
        ("asymmetric", "boston"): (0.61, 0.01),
        ("asymmetric", "energy"): (0.37, 0.10),
        ("asymmetric", "yacht"): (0.47, 0.03),
    }
)


def _sparse_row(svgp: tuple[float, float], rcsvgp: tuple[float, float]) -> Mapping[str, tuple[float, float]]:
    return MappingProxyType({"svgp": svgp, "rcsvgp": rcsvgp})


#: Mean absolute error of sparse models and its standard deviation over 10 train-test splits, keyed as in Table 1.
TABLE_SPARSE: Mapping[tuple[str, str], Mapping[str, tuple[float, float]]] = MappingProxyType(
    {
        ("clean", "synthetic"): _sparse_row((0.08, 0.00), (0.08, 0.00)),
        ("clean", "boston"): _sparse_row((0.65, 0.01), (0.56, 0.18)),
        ("clean", "energy"): _sparse_row((0.02, 0.00), (0.03, 0.00)),
        ("clean", "yacht"): _sparse_row((0.01, 0.00), (0.03, 0.00)),
        ("focused", "synthetic"): _sparse_row((0.19, 0.00), (0.13, 0.00)),
        ("focused", "boston"): _sparse_row((0.64, 0.02), (0.55, 0.16)),
        ("focused", "energy"): _sparse_row((0.05, 0.05), (0.05, 0.00)),
        ("focused", "yacht"): _sparse_row((0.29, 0.00), (0.13, 0.02)),
        ("asymmetric", "synthetic"): _sparse_row((1.32, 0.00), (1.02, 0.00)),
        ("asymmetric", "boston"): _sparse_row((0.65, 0.04), (0.64, 0.01)),
        ("asymmetric", "energy"): _sparse_row((0.64, 0.05), (0.09, 0.16)),
        ("asymmetric", "yacht"): _sparse_row((0.65, 0.04), (0.60, 0.02)),
    }
)
