"""The paper's experiments: what to run, the records of what was run, and running what is missing.

``records``       append-only JSON lines, one for each finished run
``runner``        what is not recorded yet, in parallel; may be killed and goes on where it stopped
``methods``       the models that are compared, fitted to a problem
``scores``        of predictive distributions
``tables``        the paper's tables
``figures``       the paper's figures, as numbers
``sparse``        the figure of sparse models, which is made of many runs
``optimisation``  Bayesian optimisation: figures, and a table of all their runs
``paper_values``  the numbers that the paper prints
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
    {
        experiment.name: experiment
        for experiment in (TABLE_1, TABLE_2, TABLE_C_LOO, TABLE_SPARSE, *FIGURES, *FIGURES_BO, TABLE_BO)
    }
)
