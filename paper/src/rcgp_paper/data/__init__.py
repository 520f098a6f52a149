"""Data sets, contaminations and protocols, independent of any model.

``load(name)``                             a data set, from a verified file, OpenML or a generator
``Uniform()(X, y, rng)``                   training data with outliers, and the mask of the rows that are
``prepare(dataset, contamination, ...)``   one run of a benchmark, the same for the same arguments

This room imports NumPy, scikit-learn for downloads, and nothing else of the package.
"""

from rcgp_paper.data.contamination import (
    CONTAMINATIONS,
    Asymmetric,
    Burst,
    Clean,
    Constant,
    Contaminated,
    Contamination,
    Focused,
    StudentT,
    Uniform,
)
from rcgp_paper.data.datasets import DataError, Dataset, load, names, unavailable
from rcgp_paper.data.protocols import PROTOCOLS, InitialHyperparameters, Problem, Split, prepare, protocol_data, split

__all__ = [
    "CONTAMINATIONS",
    "PROTOCOLS",
    "Asymmetric",
    "Burst",
    "Clean",
    "Constant",
    "Contaminated",
    "Contamination",
    "DataError",
    "Dataset",
    "Focused",
    "InitialHyperparameters",
    "Problem",
    "Split",
    "StudentT",
    "Uniform",
    "load",
    "names",
    "prepare",
    "protocol_data",
    "split",
    "unavailable",
]
