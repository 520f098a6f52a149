"""The judge: robust regression on ten tables and ten functions with eleven kinds of errors.

Run ``python benchmarks/robustness.py run --half judge``, then ``page``; ``cost`` measures time by the number of rows.

- ``run``: fits every method to the problems of ``suite.py`` and appends one record for each run to a file. Runs that
  have a record are not repeated, so the command may be stopped and given again;
- ``page``: writes docs/benchmark.md, with a heat map, from the records alone;
- ``cost``: CPU time of a robust fit over that of a plain GP and of scikit-learn's, at 500 and 2000 rows.

The error of a method is its mean absolute error on the clean test part, divided by that of a plain GP that was fitted
to the same rows without errors. A cell is a data set with a kind of errors; its figure is the geometric mean over
splits.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import math
import sys
import textwrap
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from threadpoolctl import threadpool_limits
from torch import Tensor

from rcgp.models import RCGP
from rcgp.models.defaults import add_weak_priors
from rcgp.training.fit import fit, fit_ordinary
from rcgp.training.robust import fit_robust
from rcgp.weights import Constant, InverseMultiquadric
from rcgp_paper.baselines import MixtureGP, RelevancePursuitGP, StudentTGP, WinsorizedGP
from rcgp_paper.experiments.records import Config, LockedError, Record, RecordFile
from rcgp_paper.experiments.runner import Experiment, Failure, Options, run_experiment
from rcgp_paper.experiments.scores import Prediction, normal_prediction, scale_mixture_prediction, score
from suite import JUDGE, KINDS, SCATTERED, TUNE, problem

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

RECORDS, PAGE = Path("results/robustness.jsonl"), Path("docs/benchmark.md")
HALVES = {"tune": TUNE, "judge": JUDGE}
_CALLED = {"tune": "tuning", "judge": "judging"}

# Kinds whose errors hide among good rows: no method is asked for full coverage there.
_HIDDEN = ("swapped 15 %", "cluster 7 %")
_HEAVY = "t2 noise"

# Data sets for which the bar on the predictive density asks for more: their noise differs from place to place.
_VARYING_NOISE = ("gagurine", "diamonds", "growing_noise")

# Rows of the data sets from which the limit on the time of a single fit applies.
_TIMED_ROWS = 300

# Relative difference of two errors that are equal but for rounding.
_ROUNDING = 1e-9


# Methods --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fitted:
    """A method that has been fitted to training rows.

    Attributes:
        predict: scores of the test inputs and observations it is given.
        flags: ``n``, which training rows it takes for outliers; ``None`` for a method that has no flags.
        law: the noise law that was chosen, as plain values; empty for other methods.
    """

    predict: Callable[[Array, Array], Prediction]
    flags: Flags | None = None
    law: Mapping[str, Any] = field(default_factory=dict)


def _plain(X: Tensor, y: Tensor) -> Fitted:
    """The GP of ``weight="constant"``: by its marginal likelihood, with the starts that the learned law's fit has."""
    model = _with_priors(RCGP(X, y, mean="median", weight=Constant()))
    fit_ordinary(model)
    return _normal(model)


def _paper(X: Tensor, y: Tensor) -> Fitted:
    """The paper's method: inverse multiquadric weights with its rule for c, leave-one-out."""
    model = _with_priors(RCGP(X, y, mean="median", weight=InverseMultiquadric()))
    fit(model, "loo")
    return _normal(model)


def _learned(X: Tensor, y: Tensor) -> Fitted:
    model = _with_priors(RCGP(X, y, mean="median"))
    report = fit_robust(model)
    law = report.law
    chosen = {
        "normal": law.is_normal,
        "shares": list(law.shares),
        "outlier_share": law.outlier_share,
        "local_noise": report.local_noise,
        "evidence_gain": report.evidence - report.normal_evidence,
    }
    flags = (model.outlier_probability() > 0.5).numpy()

    def predict(test_X: Array, test_y: Array) -> Prediction:
        x = torch.from_numpy(test_X)
        with torch.no_grad():
            posterior = model.posterior(x)
            mean, variance, noise = posterior.mean, posterior.variance, model.noise_scale(x)
            y = torch.from_numpy(test_y)
            density = law.log_density(y - mean, variance, noise, y - model.mean(x))
            chosen["inlier_nlpd"] = -float(law.log_density(y - mean, variance, noise).mean())
            low, high = (mean + law.quantile(torch.full_like(mean, q), variance, noise) for q in (0.025, 0.975))
        return Prediction(mean.numpy(), density.numpy(), low.numpy(), high.numpy(), np.full(len(test_y), math.nan))

    _condition(model)
    return Fitted(predict, flags, chosen)


def _student_t(X: Tensor, y: Tensor) -> Fitted:
    model = _with_priors(StudentTGP(X, y, mean="median"))
    model.fit()
    _condition(model)

    def predict(test_X: Array, test_y: Array) -> Prediction:
        x = torch.from_numpy(test_X)
        density = model.log_predictive_density(x, torch.from_numpy(test_y)).numpy()
        mean, weights, stds = (part.numpy() for part in model.predictive_mixture(x))
        return scale_mixture_prediction(test_y, mean, density, weights, stds)

    return Fitted(predict)


def _mixture(X: Tensor, y: Tensor) -> Fitted:
    model = _with_priors(MixtureGP(X, y, mean="median"))
    model.fit()
    return _normal(model, model.inlier_probability() < 0.5)


def _winsorized(X: Tensor, y: Tensor) -> Fitted:
    model = _with_priors(WinsorizedGP(X, y, mean="median"))
    model.fit()
    return _normal(model, model.clipped)


def _relevance_pursuit(X: Tensor, y: Tensor) -> Fitted:
    """BoTorch's model with BoTorch's defaults."""
    model = RelevancePursuitGP(X, y)
    model.fit()
    return _normal(model, model.outlier_variances > 0)


def _boosting(X: Tensor, y: Tensor) -> Fitted:
    model = HistGradientBoostingRegressor(loss="absolute_error", random_state=0).fit(X.numpy(), y.numpy())
    return _point(model.predict)


def _gpboost(X: Tensor, y: Tensor) -> Fitted:
    """GPBoost's exact GP with Student-t noise, whose degrees of freedom it learns; means only."""
    gpboost = importlib.import_module("gpboost")
    scale = X.std(dim=0).clamp_min(1e-300).numpy()
    model = gpboost.GPModel(gp_coords=X.numpy() / scale, cov_function="gaussian_ard", likelihood="t")
    model.fit(y=y.numpy(), X=np.ones((len(y), 1)))

    def mean(test_X: Array) -> Array:
        answer = model.predict(
            gp_coords_pred=test_X / scale, X_pred=np.ones((len(test_X), 1)), predict_response=False, predict_var=False
        )
        return np.asarray(answer["mu"], dtype=np.float64)

    return _point(mean)


def _with_priors(model: Any) -> Any:
    add_weak_priors(model)
    return model


def _condition(model: Any) -> None:
    """Factorise now, so that the time of a fit includes it."""
    model.posterior(model.train_X[:1]).mean  # noqa: B018


def _normal(model: Any, flags: Tensor | None = None) -> Fitted:
    """A fitted model with normal predictions."""
    _condition(model)

    def predict(test_X: Array, test_y: Array) -> Prediction:
        with torch.no_grad():
            posterior = model.posterior(torch.from_numpy(test_X), observation_noise=True)
            return normal_prediction(test_y, posterior.mean.numpy(), posterior.stddev.numpy())

    return Fitted(predict, None if flags is None else flags.numpy())


def _point(mean: Callable[[Array], Array]) -> Fitted:
    """A fitted model that predicts means and nothing else."""

    def predict(test_X: Array, test_y: Array) -> Prediction:
        unknown = np.full(len(test_y), math.nan)
        return Prediction(mean(test_X), unknown, unknown, unknown, unknown)

    return Fitted(predict)


#: Every method by its name. "clean" is fitted to the rows without errors, "told" to those of the rows with errors that
#: are right, all others to all rows with errors.
METHODS: dict[str, Callable[[Tensor, Tensor], Fitted]] = {
    "clean": _plain,
    "told": _plain,
    "plain": _plain,
    "rcgp": _paper,
    "learned": _learned,
    "student-t": _student_t,
    "mixture": _mixture,
    "winsorized": _winsorized,
    "boosting": _boosting,
    "gpboost": _gpboost,
    "rrp": _relevance_pursuit,
}
OPTIONAL = ("gpboost", "rrp")
_MEANS_ONLY = ("boosting", "gpboost")

TITLES = {
    "clean": "clean GP",
    "told": "right rows only",
    "plain": "plain GP",
    "rcgp": "paper's RCGP",
    "learned": "learned law",
    "student-t": "Student-t GP",
    "mixture": "mixture GP",
    "winsorized": "winsorized GP",
    "boosting": "boosting",
    "gpboost": "GPBoost, t",
    "rrp": "RRP",
}


# Runs -----------------------------------------------------------------------------------------------------------------


def configs(options: Options, data: Sequence[str], kinds: Sequence[str]) -> list[Config]:
    """All runs, those of one problem next to each other, so that times can be compared.

    The clean GP is the same for all kinds of errors and has one run for each split. RRP comes last: importing BoTorch
    changes settings of the linear algebra for the whole process.
    """
    methods = options.methods or tuple(METHODS)
    cells = [(name, kind, split) for split in range(options.splits) for name in data for kind in kinds]
    clean = [_config(name, "none", split, "clean") for split in range(options.splits) for name in data]
    others = [_config(*cell, method) for cell in cells for method in methods if method not in ("clean", "rrp")]
    last = [_config(*cell, "rrp") for cell in cells]
    return (clean if "clean" in methods else []) + others + (last if "rrp" in methods else [])


def _config(data: str, kind: str, split: int, method: str) -> Config:
    return {"data": data, "kind": kind, "split": split, "method": method}


def run_one(config: Config) -> dict[str, Any]:
    """Fit one method to one problem: scores, flags, CPU seconds of the fit and the law that was chosen."""
    case = problem(config["data"], config["kind"], config["split"])
    X, y, wrong = case.train_X, case.clean_y if config["method"] == "clean" else case.train_y, case.wrong
    if config["method"] == "told":
        X, y, wrong = X[~wrong], y[~wrong], wrong[~wrong]
    torch.set_num_threads(1)
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        _warm_up()
        began = time.process_time()
        fitted = METHODS[config["method"]](torch.from_numpy(X), torch.from_numpy(y))
        seconds = time.process_time() - began
        scores = score(case.test_y, fitted.predict(case.test_X, case.test_y))
    if config["method"] in _MEANS_ONLY:
        scores["coverage"] = math.nan
    return {**scores, "cpu": seconds, "rows": len(y), **_flag_scores(fitted.flags, wrong), "law": dict(fitted.law)}


def _flag_scores(flags: Flags | None, wrong: Flags) -> dict[str, float]:
    """Share of errors that are flagged, of flagged rows that are errors and of good rows that are flagged."""
    if flags is None:
        return dict.fromkeys(("recall", "precision", "good_flagged"), math.nan)
    hits = flags & wrong
    return {
        "recall": _share(hits.sum(), wrong.sum()),
        "precision": _share(hits.sum(), flags.sum()),
        "good_flagged": _share((flags & ~wrong).sum(), (~wrong).sum()),
    }


def _share(part: float, total: float) -> float:
    return float(part / total) if total else math.nan


@functools.cache
def _warm_up() -> None:
    """Load whatever the first fits of a process load, so that it does not count as their time."""
    X = torch.linspace(0.0, 1.0, 20, dtype=torch.float64).unsqueeze(-1)
    for method in (_plain, _learned):
        method(X, torch.sin(6.0 * X.squeeze(-1)))


def run(
    records: Path,
    data: Sequence[str],
    kinds: Sequence[str],
    splits: int,
    methods: Sequence[str],
    progress: Callable[[int, int], None] | None = None,
    redo: str | None = None,
) -> list[Failure]:
    """Make every run that has no record yet, or repeat a method's runs by other code (see ``run_experiment``).

    Returns:
        The runs that failed; they stay without a new record.
    """
    experiment = Experiment(
        name=records.stem,
        title="robust regression, tables and functions",
        configs=functools.partial(configs, data=tuple(data), kinds=tuple(kinds)),
        run=run_one,
        most_jobs=1,
    )
    options = Options(splits=splits, methods=tuple(methods))
    _, failures, notices = run_experiment(experiment, options, records.parent, progress=progress, redo=redo)
    for notice in notices:
        print(notice, file=sys.stderr)
    return failures


class ProgressLine:
    """Runs done, all runs and time left, on one line of a terminal; elsewhere a line for every hundredth."""

    def __init__(self) -> None:
        self.began, self.first, self.told = time.monotonic(), -1, -1

    def __call__(self, done: int, total: int) -> None:
        if self.first < 0:
            self.first = done
        passed = time.monotonic() - self.began
        left = passed * (total - done) / (done - self.first) if done > self.first else math.nan
        text = f"{done} of {total} runs, {passed / 60:.1f} min" + (f", {left / 60:.0f} min left" if left > 0 else "")
        if sys.stderr.isatty():
            print(f"\r{text:<60}", end="" if done < total else "\n", file=sys.stderr, flush=True)
        elif done == total or done >= self.told + max(total / 100, 1):
            print(text, file=sys.stderr, flush=True)
            self.told = done


# Figures from records -------------------------------------------------------------------------------------------------


class Results:
    """The records of some data sets, as figures of cells.

    Args:
        records: of runs.
        data: names of the data sets that count.
    """

    def __init__(self, records: Iterable[Record], data: Sequence[str]) -> None:
        self.runs: dict[tuple[str, str, str], dict[int, dict[str, Any]]] = defaultdict(dict)
        for record in records:
            config, values = record.config, record.values
            if config["data"] in data and config["kind"] in KINDS:
                # Of the learned law; another method has one density.
                inlier = {"inlier_nlpd": values.get("law", {}).get("inlier_nlpd", values.get("nlpd"))}
                self.runs[config["data"], config["kind"], config["method"]][config["split"]] = values | inlier
        found = {name for name, _, _ in self.runs}
        self.data = tuple(name for name in data if name in found)
        self.methods = tuple(method for method in METHODS if any(key[2] == method for key in self.runs))
        self.splits = 1 + max((split for splits in self.runs.values() for split in splits), default=-1)

    def count(self) -> int:
        """Number of runs."""
        return sum(len(splits) for splits in self.runs.values())

    def cells(self, kinds: Collection[str], *methods: str) -> list[tuple[str, str]]:
        """Data sets and kinds of errors that have records of all these methods, on a common split."""
        cells = [(name, kind) for name in self.data for kind in KINDS if kind in kinds]
        return [cell for cell in cells if self._common(*cell, *methods)]

    def values(self, name: str, kind: str, method: str, key: str) -> list[float]:
        """One number of each split that has it."""
        found = (float(values[key]) for values in self._of(name, kind, method).values())
        return [value for value in found if math.isfinite(value)]

    def ratio(self, name: str, kind: str, method: str, over: str = "clean", key: str = "mae") -> float:
        """Geometric mean over splits of one method's number over another's."""
        return math.exp(self._mean(name, kind, method, over, lambda a, b: _log_ratio(a[key], b[key])))

    def difference(self, name: str, kind: str, method: str, other: str, key: str = "nlpd") -> float:
        """Mean over splits of one method's number minus another's; infinite where it predicted a density of zero."""
        return self._mean(name, kind, method, other, lambda a, b: _finite_or(math.inf, a[key]) - float(b[key]))

    def ratios(self, kinds: Collection[str], method: str, over: str = "clean", key: str = "mae") -> list[float]:
        return [self.ratio(*cell, method, over, key) for cell in self.cells(kinds, method, over)]

    def differences(self, kinds: Collection[str], method: str, other: str, key: str = "nlpd") -> list[float]:
        if method in _MEANS_ONLY:
            return []
        return [self.difference(*cell, method, other, key) for cell in self.cells(kinds, method, other)]

    def means(self, kinds: Collection[str], method: str, key: str) -> list[float]:
        """Mean over splits, of each cell that has that number."""
        found = [self.values(*cell, method, key) for cell in self.cells(kinds, method)]
        return [_mean(values) for values in found if values]

    def laws(self, kinds: Collection[str], method: str = "learned") -> list[Mapping[str, Any]]:
        """The law of each run."""
        return [values["law"] for cell in self.cells(kinds, method) for values in self._of(*cell, method).values()]

    def _of(self, name: str, kind: str, method: str) -> dict[int, dict[str, Any]]:
        return self.runs.get((name, "none" if method == "clean" else kind, method), {})

    def _common(self, name: str, kind: str, *methods: str) -> list[int]:
        first, *others = (set(self._of(name, kind, method)) for method in methods)
        return sorted(first.intersection(*others))

    def _mean(
        self, name: str, kind: str, a: str, b: str, value: Callable[[dict[str, Any], dict[str, Any]], float]
    ) -> float:
        of_a, of_b = self._of(name, kind, a), self._of(name, kind, b)
        return _mean([value(of_a[split], of_b[split]) for split in self._common(name, kind, a, b)])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _log_ratio(value: float, other: float) -> float:
    """Infinite where a method predicted something that is not finite."""
    return math.log(max(_finite_or(math.inf, value), 1e-300) / max(other, 1e-300))


def _finite_or(other: float, value: float) -> float:
    """The value, or another one where a record has none."""
    return other if math.isnan(value) else float(value)


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(_mean([math.log(value) for value in values]))


def _share_of(values: Sequence[bool]) -> float:
    return sum(values) / len(values) if values else math.nan


def _max(values: Sequence[float]) -> float:
    return max(values, default=math.nan)


@dataclass(frozen=True)
class Bar:
    """One figure that the method has to reach.

    Attributes:
        number: of the bar.
        text: what is measured.
        figure: the value; nan where there are no records.
        low, high: between which it has to lie.
        form: how it is printed.
    """

    number: int
    text: str
    figure: float
    high: float = math.inf
    low: float = -math.inf
    form: str = ".3f"

    @property
    def verdict(self) -> str:
        if math.isnan(self.figure):
            return "no records"
        if math.isinf(self.low) and math.isinf(self.high):
            return ""
        return "met" if self.low <= self.figure <= self.high else "**missed**"

    @property
    def asked(self) -> str:
        low, high = (_text(end, self.form) for end in (self.low, self.high))
        if math.isfinite(self.low) and math.isfinite(self.high):
            return f"{low} to {high}"
        if math.isfinite(self.low):
            return f"at least {low}"
        return f"at most {high}" if math.isfinite(self.high) else "–"


def bars(results: Results, everything: Results) -> list[Bar]:
    """Bars 1, 3 and 6 of the learned law.

    Args:
        results: of one half.
        everything: of both halves, for the data sets that a bar names.
    """
    return [*_error_bars(results), *_density_bars(results, everything), *_time_bars(results)]


def _error_bars(results: Results) -> list[Bar]:
    scattered, clean = results.ratios(SCATTERED, "learned"), results.ratios(("none",), "learned")
    most = results.ratios([kind for kind in KINDS if kind != _HEAVY], "learned")
    over_t = functools.partial(results.ratios, method="learned", over="student-t")
    below = _share_of([ratio <= 1.0 + _ROUNDING for ratio in over_t(KINDS)])
    clusters, heavy = _geometric_mean(over_t(("cluster 7 %",))), _geometric_mean(over_t((_HEAVY,)))
    return [
        Bar(1, "error, all kinds but t₂ noise: geometric mean", _geometric_mean(most), 1.02),
        Bar(1, "error, scattered: share of cells above 1.3", _share_of([r > 1.3 for r in scattered]), 0.04, form=".1%"),
        Bar(1, "error, scattered: worst cell", _max(scattered), 2.0),
        Bar(1, "error, none: geometric mean", _geometric_mean(clean), 1.0 + _ROUNDING),
        Bar(1, "error, none: worst cell", _max(clean), 1.10),
        Bar(1, "share of cells at or below the Student-t GP's error", below, low=0.75, form=".1%"),
        Bar(1, "error over the Student-t GP's, clusters: geometric mean", clusters, 1.0 + _ROUNDING),
        Bar(1, "error over the Student-t GP's, t₂ noise: geometric mean", heavy, 1.05),
    ]


def _density_bars(results: Results, everything: Results) -> list[Bar]:
    shown = [kind for kind in KINDS if kind not in _HIDDEN]
    coverage = results.means(shown, "learned", "coverage")
    by_data = [_mean(found) for name in results.data if (found := _of_data(results, name, shown, "coverage"))]
    gain = _mean(results.differences(("none",), "learned", "plain"))
    gains = {name: everything.difference(name, "none", "learned", "plain") for name in _VARYING_NOISE}
    over_t = results.differences(SCATTERED, "learned", "student-t")
    inlier_over_t = results.differences(SCATTERED, "learned", "student-t", "inlier_nlpd")
    return [
        Bar(3, "density minus the plain GP's, none: mean", gain, -0.05),
        *(
            Bar(
                3,
                f"density minus the plain GP's, none: {name} ({_CALLED['tune' if name in TUNE else 'judge']} half)",
                value,
                -0.15,
            )
            for name, value in gains.items()
        ),
        Bar(3, "share of scattered cells with density below the Student-t GP's", _below(over_t), low=0.75, form=".1%"),
        Bar(3, "the same, the learned law's density that of an inlier", _below(inlier_over_t), form=".1%"),
        Bar(3, "coverage: mean of cells", _mean(coverage), 0.97, 0.93),
        Bar(3, "coverage: lowest data set, mean of its cells", min(by_data, default=math.nan), low=0.85),
        Bar(3, "coverage: lowest cell", min(coverage, default=math.nan)),
    ]


def _below(differences: Sequence[float]) -> float:
    return _share_of([difference < 0.0 for difference in differences])


def _time_bars(results: Results) -> list[Bar]:
    every = results.ratios(KINDS, "learned", "plain", "cpu")
    large = [
        results.ratio(name, kind, "learned", "plain", "cpu")
        for name, kind in results.cells(KINDS, "learned", "plain")
        if min(results.values(name, kind, "learned", "rows")) >= _TIMED_ROWS
    ]
    return [
        Bar(6, "CPU time over the plain GP's: median of cells", _median(every), 2.0, form=".2f"),
        Bar(6, f"CPU time over the plain GP's: worst cell with n ≥ {_TIMED_ROWS}", _max(large), 4.0, form=".2f"),
    ]


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if len(values) else math.nan


def _of_data(results: Results, name: str, kinds: Collection[str], key: str, method: str = "learned") -> list[float]:
    """Means over splits of the cells of one data set."""
    found = [results.values(*cell, method, key) for cell in results.cells(kinds, method) if cell[0] == name]
    return [_mean(values) for values in found if values]


# The page -------------------------------------------------------------------------------------------------------------


_TEXT = """# Benchmark

How the learned noise law and other methods cope with errors in the training data: ten tables and ten functions, eleven
kinds of errors, a clean test part. *Error* is the mean absolute error on the test part, divided by that of a plain GP
fitted to the same rows without errors. A *cell* is a data set with a kind of errors; its figure is the geometric mean
over random splits.

- **For tuning**: {tune}.
- **For judging**: {judge}.

Figures below: the **{half} half**, {size}. {missing}

Our models have a squared exponential kernel with a lengthscale for each input, the same weak priors, and the median as
prior mean.

```sh
export RCGP_DATA_HOME=...
python benchmarks/robustness.py run --half {option}
python benchmarks/robustness.py page{page_option}
```

## Bars

*Density* is the mean negative log predictive density of the test part; lower is better. *Coverage* is that of the
central 95 % interval, here without swapped values and clusters. Two more bars, on time at 2000 rows and against
scikit-learn, are measured by `python benchmarks/robustness.py cost`. Clusters are compared with the Student-t GP only:
the adaptive recipe of older versions has no records here.

{bars}

{reach}

## Error

Geometric mean over data sets; 1 is the plain GP without errors. Scattered errors exclude none, t₂ noise, swapped
values and clusters. *Right rows only* is a plain GP that is told which rows are wrong, and fitted to the others: what
is left to lose where the errors are found without fail. Best in bold, among the methods with records of all cells.

{errors}
{heat_map}
## Density, coverage, time

Density minus that of the plain GP without errors, mean of cells. Lowest coverage is without swapped values and
clusters. Time is CPU time of a fit, one thread, over the plain GP's on the same rows.

{others}

## Flags

Share of errors that are flagged / share of flagged rows that are errors, then the share of good rows that are flagged;
means of cells. The learned law flags rows with an outlier probability above one half, the mixture GP rows with an
inlier probability below one half, the winsorized GP rows that it clips, RRP rows with a noise variance of their own.

{flags}

## Learned law by data set

{data}

Without errors the law is normal in {normal} fits. The noise differs from place to place in {local} fits.
"""

_HEAT_MAP = """
```{{image}} {path}
:alt: Error of the learned law by data set and kind of errors
```

The learned law, cell by cell. Blue is better than the plain GP without errors, red is worse.
"""


def page(records: Sequence[Record], half: str, image: str | None) -> str:
    """The page of one half, in Markdown.

    Args:
        records: of runs, of any half.
        half: "tune" or "judge".
        image: where the heat map is, relative to the page; ``None`` without records of the learned law.
    """
    results, everything = Results(records, HALVES[half]), Results(records, (*TUNE, *JUDGE))
    clean, laws = results.laws(("none",)), results.laws(KINDS)
    return _TEXT.format(
        tune=", ".join(TUNE),
        judge=", ".join(JUDGE),
        half=_CALLED[half],
        size=_size(results),
        missing=_missing(results),
        option=half,
        page_option="" if half == "judge" else f" --half {half}",
        reach=_reach(results),
        bars=_bar_table(bars(results, everything)),
        errors=_error_table(results),
        heat_map="" if image is None else _HEAT_MAP.format(path=image),
        others=_other_table(results),
        flags=_flag_table(results),
        data=_data_table(results),
        normal=f"{sum(bool(law['normal']) for law in clean)} of {len(clean)}",
        local=f"{sum(bool(law['local_noise']) for law in laws)} of {len(laws)}",
    )


def _size(results: Results) -> str:
    """How much was run."""
    parts = ((len(results.data), "data set"), (results.splits, "split"), (results.count(), "run"))
    return ", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in parts)


def _missing(results: Results) -> str:
    """How many runs each method lacks."""
    wanted = {(name, kind, split) for (name, kind, _), runs in results.runs.items() for split in runs}
    lacking = {
        TITLES[method]: sum(split not in results.runs.get((name, kind, method), {}) for name, kind, split in wanted)
        for method in results.methods
        if method != "clean"
    }
    told = [f"{title} {count}" for title, count in lacking.items() if count]
    return f"Runs without a record, failed or not made: {', '.join(told)}." if told else "No run failed."


def _bar_table(found: Sequence[Bar]) -> str:
    rows = [[str(bar.number), bar.text, _text(bar.figure, bar.form), bar.asked, bar.verdict] for bar in found]
    return _table(["bar", "figure", "value", "asked", ""], rows, text=2)


def _reach(results: Results) -> str:
    """What a GP that is told the errors reaches, and how closely cells are lost to the Student-t GP."""
    most = [kind for kind in KINDS if kind != _HEAVY]
    sentences = []
    if results.cells(KINDS, "told", "clean"):
        scattered = results.ratios(SCATTERED, "told")
        sentences.append(
            "For scale: a plain GP that is told which rows are wrong has a geometric mean of "
            f"{_text(_geometric_mean(results.ratios(most, 'told')), '.3f')}, "
            f"{_text(_share_of([ratio > 1.3 for ratio in scattered]), '.1%')} of scattered cells above 1.3, and "
            f"{_text(_max(scattered), '.2f')} in the worst."
        )
    over_t = [ratio for ratio in results.ratios(KINDS, "learned", "student-t") if ratio > 1.0 + _ROUNDING]
    if over_t:
        close = sum(ratio <= 1.05 for ratio in over_t)
        sentences.append(f"Of {len(over_t)} cells lost to the Student-t GP {close} are within 5 %.")
    return "\n".join(textwrap.wrap(" ".join(sentences), 120))


def _error_table(results: Results) -> str:
    methods = [method for method in results.methods if method != "clean"]
    most = max((len(results.cells(KINDS, method, "clean")) for method in methods), default=0)
    full = [method != "told" and len(results.cells(KINDS, method, "clean")) == most for method in methods]
    but_heavy = [kind for kind in KINDS if kind != _HEAVY]
    lines: list[tuple[str, list[float], str]] = [
        (_kind(kind), [_geometric_mean(results.ratios((kind,), method)) for method in methods], ".2f") for kind in KINDS
    ]
    scattered = [results.ratios(SCATTERED, method) for method in methods]
    lines += [
        ("all but t₂ noise", [_geometric_mean(results.ratios(but_heavy, method)) for method in methods], ".2f"),
        ("scattered, share above 1.3", [_share_of([r > 1.3 for r in ratios]) for ratios in scattered], ".0%"),
        ("scattered, worst", [_max(ratios) for ratios in scattered], ".3g"),
    ]
    rows = [[title, *_best_in_bold(values, form, full)] for title, values, form in lines]
    rows.append(["cells", *(str(len(results.cells(KINDS, method, "clean"))) for method in methods)])
    return _table(["", *(TITLES[method] for method in methods)], rows)


def _other_table(results: Results) -> str:
    shown = [kind for kind in KINDS if kind not in _HIDDEN]
    rows = []
    for method in results.methods:
        if method == "clean":
            continue
        times = results.ratios(KINDS, method, "plain", "cpu")
        rows.append(
            [
                TITLES[method],
                _text(_mean(results.differences(("none",), method, "clean")), "+.2f"),
                _text(_mean(results.differences(SCATTERED, method, "clean")), "+.2f"),
                _text(_mean(results.means(("none",), method, "coverage")), ".3f"),
                _text(_mean(results.means(SCATTERED, method, "coverage")), ".3f"),
                _text(min(results.means(shown, method, "coverage"), default=math.nan), ".2f"),
                _text(_median(times), ".2f"),
                _text(_max(times), ".2f"),
            ]
        )
    titles = [
        "density, no errors",
        "scattered",
        "coverage, no errors",
        "scattered",
        "lowest",
        "time, median",
        "largest",
    ]
    return _table(["", *titles], rows)


def _flag_table(results: Results) -> str:
    methods = [method for method in results.methods if results.means(KINDS, method, "good_flagged")]
    rows = []
    for kind in KINDS:
        row = [_kind(kind)]
        for method in methods:
            recall, precision, good = (
                _mean(results.means((kind,), method, key)) for key in ("recall", "precision", "good_flagged")
            )
            found = "–" if math.isnan(recall) else f"{_text(recall, '.0%')} / {_text(precision, '.0%')}"
            row += [found, _text(good, ".1%")]
        rows.append(row)
    return _table(["", *(title for method in methods for title in (TITLES[method], "good rows"))], rows)


def _data_table(results: Results) -> str:
    rows = []
    for name in results.data:
        cells = [cell for cell in results.cells(KINDS, "learned", "clean") if cell[0] == name]
        if not cells:
            continue
        scattered = [results.ratio(*cell, "learned") for cell in cells if cell[1] in SCATTERED]
        timed = [cell for cell in results.cells(KINDS, "learned", "plain") if cell[0] == name]
        rows.append(
            [
                name,
                _text(max(results.values(*cells[0], "learned", "rows")), ".0f"),
                _text(results.ratio(name, "none", "learned"), ".3f"),
                _text(_geometric_mean(scattered), ".2f"),
                _text(_max(scattered), ".2f"),
                _text(results.difference(name, "none", "learned", "plain"), "+.2f"),
                _text(_mean(_of_data(results, name, [k for k in KINDS if k not in _HIDDEN], "coverage")), ".3f"),
                _text(_median([results.ratio(*cell, "learned", "plain", "cpu") for cell in timed]), ".2f"),
            ]
        )
    titles = ["rows", "error, none", "scattered", "worst", "density − plain, none", "coverage", "time"]
    return _table(["", *titles], rows)


def _kind(kind: str) -> str:
    return kind.replace("t2", "t₂")


def _text(value: float, form: str) -> str:
    return "–" if math.isnan(value) else format(value, form).replace("-", "−").replace("%", " %")


def _best_in_bold(values: Sequence[float], form: str, full: Sequence[bool]) -> list[str]:
    """Numbers as text, the lowest in bold; those that are printed alike share it."""
    texts = [_text(value, form) for value in values]
    ranked = [value for value, counts in zip(values, full, strict=True) if counts and not math.isnan(value)]
    best = _text(min(ranked), form) if ranked else ""
    return [f"**{text}**" if text == best and counts else text for text, counts in zip(texts, full, strict=True)]


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]], text: int = 1) -> str:
    """A Markdown table; the first columns are text, the others numbers."""
    lines = [titles, [*("---" for _ in titles[:text]), *("---:" for _ in titles[text:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def draw(results: Results, path: Path) -> None:
    """The heat map of the learned law: data sets by kinds of errors."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cells = set(results.cells(KINDS, "learned", "clean"))
    values = np.array(
        [
            [results.ratio(name, kind, "learned") if (name, kind) in cells else math.nan for kind in KINDS]
            for name in results.data
        ]
    )
    figure, axes = pyplot.subplots(figsize=(10.0, 1.6 + 0.42 * len(results.data)), layout="constrained")
    shown = axes.imshow(np.log2(values), cmap="RdBu_r", vmin=-1.0, vmax=1.0, aspect="auto")
    axes.set_xticks(range(len(KINDS)), [_kind(kind) for kind in KINDS], rotation=35, ha="right")
    axes.set_yticks(range(len(results.data)), results.data)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for (row, column), value in np.ndenumerate(values):
        if math.isfinite(value):
            dark = abs(math.log2(value)) > 0.6
            text = f"{value:.2f}" if value < 100 else f"{value:.0f}"
            axes.text(column, row, text, ha="center", va="center", fontsize=8.5, color="white" if dark else "black")
    bar = figure.colorbar(shown, ax=axes, ticks=[-1.0, -0.5, 0.0, 0.5, 1.0], shrink=0.9, pad=0.015)
    bar.ax.set_yticklabels(["½", "0.71", "1", "1.41", "2"])
    bar.outline.set_visible(False)
    bar.set_label("error over the clean GP's")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def write_page(records: Path, output: Path, half: str) -> None:
    """Read the records, draw the heat map beside the page and write both."""
    found, notices = RecordFile(records).read()
    for notice in notices:
        print(notice, file=sys.stderr)
    results = Results(found, HALVES[half])
    if not results.data:
        raise SystemExit(f"{records} has no records of the {half} half: make some with 'run --half {half}'")
    image = output.parent / "images" / f"{records.stem}.png"
    drawn = bool(results.cells(KINDS, "learned", "clean"))
    if drawn:
        draw(results, image)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(page(found, half, f"images/{image.name}" if drawn else None), encoding="utf-8")
    print(f"{output}{f' and {image}' if drawn else ''}: {len(found)} records read")


# Cost -----------------------------------------------------------------------------------------------------------------


def cost(full: bool) -> None:
    """CPU time of fits, one thread, as ratios: the learned law over the plain GP and over scikit-learn's."""
    titles = ("plain GP", "learned law", "scikit-learn", "law / plain", "law / scikit-learn")
    print(f"{'rows':>6}", *(f"{title:>18}" for title in titles))
    torch.set_num_threads(1)
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        _warm_up()
        for n in (500, 2000):
            X, y = _friedman_with_outliers(n)
            repeats = 3 if n <= 500 else 1
            plain = _cpu_seconds(functools.partial(_plain, X, y), repeats)
            law = _cpu_seconds(functools.partial(_learned, X, y), repeats)
            other = math.nan
            if n <= 500 or full:
                other = _cpu_seconds(functools.partial(_scikit_learn, X, y), 1)
            figures = (*map(_seconds, (plain, law, other)), f"{law / plain:.2f}", _text(law / other, ".2f"))
            print(f"{n:>6}", *(f"{figure:>18}" for figure in figures), flush=True)


def _seconds(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}s"


def _cpu_seconds(function: Callable[[], object], repeats: int) -> float:
    """The median of several."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        function()
        times.append(time.process_time() - began)
    return _median(times)


def _friedman_with_outliers(n: int) -> tuple[Tensor, Tensor]:
    """Friedman's first function, six inputs of which one does nothing, noise 1, a tenth of the rows 3–9 sd off."""
    random = np.random.default_rng(0)
    X = random.random((n, 6))
    f = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]
    wrong = random.random(n) < 0.1
    y = f + random.standard_normal(n) + wrong * f.std() * random.choice([-1.0, 1.0], n) * random.uniform(3.0, 9.0, n)
    return torch.from_numpy(X), torch.from_numpy(y)


def _scikit_learn(X: Tensor, y: Tensor) -> object:
    kernel = ConstantKernel(1.0) * RBF(np.ones(X.shape[1])) + WhiteKernel(0.1)
    return GaussianProcessRegressor(kernel, normalize_y=True).fit(X.numpy(), y.numpy())


# Command line ---------------------------------------------------------------------------------------------------------


def _named(choices: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """A list of names with commas between them."""

    def names(text: str) -> tuple[str, ...]:
        chosen = tuple(name.strip() for name in text.split(","))
        unknown = [name for name in chosen if name not in choices]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; choose from {', '.join(choices)}")
        return chosen

    return names


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    usual = tuple(method for method in METHODS if method not in OPTIONAL)
    runs = commands.add_parser("run", help="make the runs that have no record yet")
    runs.add_argument("--half", choices=tuple(HALVES), default="judge", help="of the data sets; default: judge")
    runs.add_argument("--data", type=_named((*TUNE, *JUDGE)), help="only these data sets of the half, comma-separated")
    runs.add_argument("--kinds", type=_named(KINDS), default=tuple(KINDS), help="of errors, comma-separated")
    runs.add_argument("--splits", type=int, default=5, help="number of random splits; default: 5")
    runs.add_argument("--methods", type=_named(METHODS), default=usual, help=f"default: {','.join(usual)}")
    runs.add_argument("--output", type=Path, default=RECORDS, help=f"file of records, .jsonl; default: {RECORDS}")
    runs.add_argument("--redo", choices=tuple(METHODS), help="repeat the recorded runs of this method, and no others")
    pages = commands.add_parser("page", help="write the page from the records")
    pages.add_argument("--half", choices=tuple(HALVES), default="judge", help="of the data sets; default: judge")
    pages.add_argument("--records", type=Path, default=RECORDS, help=f"default: {RECORDS}")
    pages.add_argument("--output", type=Path, default=PAGE, help=f"default: {PAGE}; the heat map goes to images/")
    costs = commands.add_parser("cost", help="CPU time at 500 and 2000 rows")
    costs.add_argument("--full", action="store_true", help="scikit-learn at 2000 rows too: many minutes")
    chosen = parser.parse_args(arguments)
    if chosen.command == "page":
        write_page(chosen.records, chosen.output, chosen.half)
        return 0
    if chosen.command == "cost":
        cost(chosen.full)
        return 0
    if chosen.output.suffix != ".jsonl":
        parser.error(f"--output must end in .jsonl, got {str(chosen.output)!r}")
    if "gpboost" in chosen.methods and importlib.util.find_spec("gpboost") is None:
        parser.error("the method gpboost needs the package of that name: pip install gpboost")
    data = [name for name in HALVES[chosen.half] if chosen.data is None or name in chosen.data]
    if not data:
        parser.error(f"none of these data sets is in the {chosen.half} half: {', '.join(chosen.data)}")
    try:
        failures = run(chosen.output, data, chosen.kinds, chosen.splits, chosen.methods, ProgressLine(), chosen.redo)
    except LockedError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print("\nstopped: the same command continues from here", file=sys.stderr)
        return 130
    for failure in failures:
        print(f"failed: {failure.config}: {failure.error}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
