"""The paper's experiments: configurations, records of finished runs, and the runner of missing ones.

``records``       append-only JSON lines, one for each finished run
``runner``        runs what has no record yet, in parallel; resumes where it was killed
``methods``       the models that are compared, fitted to a problem
``scores``        of predictive distributions
``tables``        the paper's tables, and the numbers that it prints
``figures``       the paper's figures, as numbers
``flash_crash``   the flash crash within two days; imports numba
``optimisation``  Bayesian optimisation: figures, and a table of all their runs
``trials``        its functions, models and loop; imports BoTorch
"""

from collections.abc import Mapping
from types import MappingProxyType

from rcgp_paper.experiments.figures import FIGURES
from rcgp_paper.experiments.optimisation import FIGURES_BO, TABLE_BO
from rcgp_paper.experiments.records import LockedError, Record, RecordFile
from rcgp_paper.experiments.runner import Experiment, Failure, Options, configs_of, run_experiment, runs_to_make
from rcgp_paper.experiments.tables import TABLE_1, TABLE_2, TABLE_C_LOO, TABLE_SPARSE

__all__ = [
    "EXPERIMENTS",
    "Experiment",
    "Failure",
    "LockedError",
    "Options",
    "Record",
    "RecordFile",
    "configs_of",
    "run_experiment",
    "runs_to_make",
]

#: Every experiment by its name.
EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType(
    {each.name: each for each in (TABLE_1, TABLE_2, TABLE_C_LOO, TABLE_SPARSE, *FIGURES, *FIGURES_BO, TABLE_BO)}
)
