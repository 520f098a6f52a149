"""The robust model in Ax: registered for its storage, with a generation strategy that uses it.

    client.set_generation_strategy(rcgp.botorch.ax.generation_strategy())       # the one line that a script needs

Importing this file registers the classes below with Ax. A process that loads a saved experiment must import it, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import ax as _ax  # noqa: F401
except ImportError as error:
    raise ImportError("rcgp.botorch.ax needs Ax: pip install 'rcgp[ax]'") from error

import gpytorch
import torch
from ax.adapter.registry import Generators
from ax.adapter.transforms.base import Transform
from ax.adapter.transforms.standardize_y import StandardizeY
from ax.adapter.transforms.winsorize import Winsorize
from ax.analysis.analysis import Analysis
from ax.api.utils.generation_strategy_dispatch import choose_generation_strategy
from ax.api.utils.structs import GenerationStrategyDispatchStruct
from ax.core.analysis_card import AnalysisCard
from ax.core.experiment import Experiment
from ax.core.search_space import SearchSpaceDigest
from ax.exceptions.core import UserInputError
from ax.generation_strategy.generation_strategy import GenerationStrategy
from ax.generation_strategy.generator_spec import GeneratorSpec
from ax.generators.torch.botorch_modular.surrogate import Surrogate, submodel_input_constructor
from ax.generators.torch.botorch_modular.utils import ModelConfig
from ax.storage.botorch_modular_registry import (
    CLASS_TO_REGISTRY,
    CLASS_TO_REVERSE_REGISTRY,
    register_mll,
    register_model,
)
from ax.storage.transform_registry import register_transform
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.models.model import Model
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.datasets import SupervisedDataset
from gpytorch.mlls import ExactMarginalLogLikelihood

from rcgp.botorch.defaults import RobustStandardize
from rcgp.botorch.fitting import LeaveOneOutObjective
from rcgp.botorch.model import SingleTaskRCGP
from rcgp.botorch.validation import check_weight

if TYPE_CHECKING:
    from ax.api.client import Client

__all__ = ["RobustStandardizeY", "generation_strategy", "model_config", "outlier_probability", "transforms"]


class RobustStandardizeY(StandardizeY):  # type: ignore[misc]
    """Ax's ``StandardizeY`` with the median and median absolute deviation of :class:`RobustStandardize`.

    Acquisition functions have tolerances in these units, which outliers must not set.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        experiment_data = kwargs["experiment_data"]
        for metric, column in experiment_data.observation_data["mean"].items():
            standardize = RobustStandardize(m=1)
            standardize(torch.tensor(column.dropna().to_numpy(), dtype=torch.float64).unsqueeze(-1))
            self.Ymean[metric], self.Ystd[metric] = standardize.means.item(), standardize.stdvs.item()


def generation_strategy(
    *, weight: str = "learned", botorch_acqf_class: type[AcquisitionFunction] | None = None, **options: Any
) -> GenerationStrategy:
    """A strategy with the robust model for ``client.set_generation_strategy``.

    Args:
        weight: name of a weight, see :class:`SingleTaskRCGP`.
        botorch_acqf_class: acquisition function. Default: Ax's choice.
        options: as in ``client.configure_generation_strategy``, except ``method``: ``initialization_budget``, ...
    """
    if "method" in options:
        raise TypeError("generation_strategy has no method: it is the robust model")
    struct = GenerationStrategyDispatchStruct(method="custom", **options)
    strategy = choose_generation_strategy(struct, model_config(weight), botorch_acqf_class)
    strategy.nodes_by_name["MBM"].generator_specs[0].generator_kwargs["transforms"] = transforms()
    return strategy


def model_config(weight: str = "learned") -> ModelConfig:
    """The robust model for the ``SurrogateSpec`` of your own generation strategy.

    Args:
        weight: name of a weight, see :class:`SingleTaskRCGP`.
    """
    check_weight(weight)
    return ModelConfig(
        botorch_model_class=SingleTaskRCGP,
        model_options={"weight": weight},
        mll_class=ExactMarginalLogLikelihood if weight in ("learned", "constant") else LeaveOneOutObjective,
        outcome_transform_classes=[RobustStandardize],
        name=SingleTaskRCGP.__name__,
    )


def transforms() -> list[type[Transform]]:
    """Ax's transforms for BoTorch models, made robust.

    ``RobustStandardizeY`` replaces ``StandardizeY``. ``Winsorize`` is left out: it makes outliers plausible and changes
    inliers.
    """
    defaults = Generators.BOTORCH_MODULAR.GENERATOR_KEY_TO_GENERATOR_SETUP[Generators.BOTORCH_MODULAR.value].transforms
    return [RobustStandardizeY if kind is StandardizeY else kind for kind in defaults if kind is not Winsorize]


def outlier_probability(client: Client) -> Any:
    """Probability that each observation of an experiment, the newest included, is an outlier.

    Fits a model to all data of the experiment, as the generation strategy would for its next trial. The strategy is
    unchanged. Cost: one fit.

    Args:
        client: an Ax client whose generation strategy has the robust model.

    Returns:
        A data frame indexed by ``trial_index`` and ``arm_name`` with a column for each metric
        (:meth:`SingleTaskRCGP.outlier_probability`), NaN if the trial does not have the metric.

    Raises:
        UserInputError: if the strategy has no robust model, or the experiment no data.
    """
    seen = _Contents()
    client.compute_analyses([seen], display=False)
    spec = _robust_spec(seen.strategy)
    data = seen.experiment.lookup_data()
    if data.df.empty:
        raise UserInputError("no trial has data yet")
    fresh = GeneratorSpec(generator_enum=spec.generator_enum, generator_kwargs=dict(spec.generator_kwargs))
    fresh.fit(experiment=seen.experiment, data=data)
    adapter = fresh.fitted_adapter
    probabilities = _probabilities(adapter.generator.surrogate)
    means = adapter.get_training_data(filter_in_design=True).observation_data["mean"]
    frame = means[list(probabilities)].rename_axis(columns=None)
    for metric, rows in probabilities.items():
        observed = frame[metric].notna()  # Ax's data sets have no row for a trial without the metric
        if int(observed.sum()) != len(rows):
            raise UserInputError(f"metric {metric!r} has {observed.sum()} observations, but Ax uses {len(rows)}")
        frame.loc[observed, metric] = rows.cpu().numpy()
    return frame


class _Contents(Analysis):  # type: ignore[misc]
    """Experiment and generation strategy of an Ax client, which it passes to analyses only."""

    experiment: Experiment
    strategy: GenerationStrategy

    def compute(self, experiment: Any = None, generation_strategy: Any = None, adapter: Any = None) -> AnalysisCard:
        """Store both; the card is unused."""
        self.experiment, self.strategy = experiment, generation_strategy
        return AnalysisCard(name=type(self).__name__, title="", subtitle="", df=experiment.lookup_data().df, blob="")


def _robust_spec(strategy: GenerationStrategy) -> GeneratorSpec:
    """The robust generator of a strategy."""
    for node in strategy.nodes_by_name.values():
        for spec in node.generator_specs:
            surrogate = spec.generator_kwargs.get("surrogate_spec")
            configs = [] if surrogate is None else surrogate.model_configs
            if any(config.botorch_model_class is SingleTaskRCGP for config in configs):
                return spec
    raise UserInputError(
        f"generation strategy {strategy.name!r} has no SingleTaskRCGP: rcgp.botorch.ax.generation_strategy() has one"
    )


def _probabilities(surrogate: Surrogate) -> dict[str, torch.Tensor]:
    """Outlier probabilities of the rows of each metric: outputs of one model, or models of a list."""
    models = [surrogate.model] if isinstance(surrogate.model, SingleTaskRCGP) else surrogate.model.models
    probabilities: dict[str, torch.Tensor] = {}
    for model, data in zip(models, surrogate.training_data, strict=True):
        if isinstance(model, SingleTaskRCGP):
            probabilities.update(zip(data.outcome_names, model.outlier_probability().unbind(-1), strict=True))
    return probabilities


@submodel_input_constructor.register(SingleTaskRCGP)  # type: ignore[untyped-decorator]
def _inputs(
    botorch_model_class: type[SingleTaskRCGP],
    model_config: ModelConfig,
    dataset: SupervisedDataset,
    search_space_digest: SearchSpaceDigest,
    surrogate: Surrogate,
) -> dict[str, Any]:
    """Ax's own inputs, with standard errors of zero raised to GPyTorch's smallest noise."""
    if dataset.Yvar is not None:
        for metric, missing in zip(dataset.outcome_names, dataset.Yvar.isnan().any(dim=-2).tolist(), strict=True):
            if missing:
                raise UserInputError(
                    f"metric {metric!r} has standard errors in some trials only: give it standard errors in all trials "
                    "or in none"
                )
    inputs: dict[str, Any] = submodel_input_constructor.dispatch(Model)(
        botorch_model_class, model_config, dataset, search_space_digest, surrogate
    )
    if "train_Yvar" in inputs:
        Yvar = inputs["train_Yvar"]
        inputs["train_Yvar"] = Yvar.clamp_min(gpytorch.settings.min_fixed_noise.value(Yvar.dtype))
    return inputs


register_model(SingleTaskRCGP)
register_mll(LeaveOneOutObjective)
register_transform(RobustStandardizeY)
# Ax has no function to register an outcome transform.
CLASS_TO_REGISTRY[OutcomeTransform][RobustStandardize] = RobustStandardize.__name__
CLASS_TO_REVERSE_REGISTRY[OutcomeTransform][RobustStandardize.__name__] = RobustStandardize
