"""The robust conjugate GP as a BoTorch model of several tasks, in the long format.

BoTorch's ``MultiTaskGP`` has the prior, the tasks and their outputs, :class:`RobustModel` weights and predictions. For
a robust fit the model is taken out as an :class:`rcgp.MultiOutputRCGP`, whose cells are the rows.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Self

import gpytorch
import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.gpytorch import gpt_posterior_settings
from botorch.models.multitask import MultiTaskGP
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform, StratifiedStandardize
from botorch.models.utils.assorted import fantasize as fantasizing
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.utils.datasets import MultiTaskDataset, SupervisedDataset
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood, HadamardGaussianLikelihood
from gpytorch.priors import Prior
from torch import Tensor

from rcgp.botorch import validation
from rcgp.botorch.defaults import RobustStratifiedStandardize, default_kernel, standardize_of_tasks
from rcgp.botorch.robust_model import RobustModel, above_bound, law_numbers, noise_laws, take_noise
from rcgp.botorch.task_modules import MappedTaskLikelihood, MeanOfTask, TaskKernel, TaskMean, insert_task, name_prior
from rcgp.botorch.training_data import Index, write_slice
from rcgp.botorch.weighing import Tasks
from rcgp.models import RCGP, MultiOutputRCGP
from rcgp.models.defaults import robust_spread
from rcgp.weights import ByOutput, Constant, NoiseLaw, WeightFunction

__all__ = ["MultiTaskRCGP"]

_LIKELIHOODS = (GaussianLikelihood, HadamardGaussianLikelihood, FixedNoiseGaussianLikelihood)


class MultiTaskRCGP(RobustModel, MultiTaskGP):  # type: ignore[misc]
    """A ``MultiTaskGP`` that outliers cannot break.

    Robust conjugate GP regression of several tasks (:class:`rcgp.MultiOutputRCGP`) with BoTorch's constructor and
    methods: a row of ``train_X`` holds an input and the task that was observed there. Each task has a noise variance
    and a noise law of its own, each row a weight: a bad value costs no other row its weight, and the other tasks help
    to tell that it is bad. ``fit_gpytorch_mll`` learns the laws with the hyperparameters. If the noise is normal, the
    model equals ``MultiTaskGP`` with the same kernel and transforms.

    Weights are a function of data, hyperparameters and noise laws. The laws are part of the state, ``T x 6``, so
    ``condition_on_observations`` equals a model of all the data with the same state. The law of a task without
    observations, and of all before a fit, is the prior one, with one outlier in thirteen rows.

    Args:
        train_X: ``n x (d + 1)`` inputs with a column of tasks, whole numbers from 0 on.
        train_Y: ``n x 1`` observations.
        task_feature: the column of the tasks.
        train_Yvar: ``n x 1`` known noise variances. Default: one for each task, learned.
        mean_module: prior mean: a ``MultitaskMean`` of d columns, or one of all columns. Default: a learned constant
            for each task.
        covar_module: kernel of the d inputs. Default: BoTorch's squared exponential with its priors, times a learned
            output scale.
        likelihood: a ``HadamardGaussianLikelihood``, ``GaussianLikelihood``, whose noise variance all tasks share, or
            ``FixedNoiseGaussianLikelihood``; no subclass. Default: the first, with BoTorch's prior.
        task_covar_prior, rank: prior and rank of the covariance of the tasks, as in BoTorch.
        output_tasks: the tasks that are outputs of the model. Default: all.
        all_tasks: all tasks, if some have no observations. Default: those of ``train_X``.
        outcome_transform: Default: :class:`RobustStratifiedStandardize`, each task by itself; ``None`` for none.
        input_transform: as in BoTorch; it must leave the tasks alone.
        validate_task_values: whether tasks that are not known raise an error, as in BoTorch.
        weight: as for :class:`SingleTaskRCGP`; of a weight function each task gets a copy.

    Raises:
        InputDataError: for NaN or infinite values and tasks that are not whole numbers, naming the row.
        BotorchTensorDimensionError: for inconsistent shapes.
        TypeError: for a likelihood of another kind.
        ValueError: for batches, a column that does not exist, and an unknown weight.

    Example:
        >>> x = torch.linspace(0, 1, 20, dtype=torch.float64).unsqueeze(-1)
        >>> train_X = torch.cat([torch.cat([x, torch.full_like(x, task)], -1) for task in (0, 1)])
        >>> train_Y = torch.cat([(5 * x).sin(), (5 * x).sin() + x])
        >>> train_Y[25] = 9.0
        >>> model = MultiTaskRCGP(train_X, train_Y, task_feature=-1)
        >>> int(model.weights().argmin())
        25
    """

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        task_feature: int,
        train_Yvar: Tensor | None = None,
        mean_module: gpytorch.means.Mean | None = None,
        covar_module: gpytorch.kernels.Kernel | None = None,
        likelihood: gpytorch.likelihoods.Likelihood | None = None,
        task_covar_prior: Prior | _DefaultType | None = DEFAULT,
        output_tasks: list[int] | None = None,
        rank: int | None = None,
        all_tasks: list[int] | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        validate_task_values: bool = True,
        weight: str | WeightFunction = "learned",
    ) -> None:
        weight_function = validation.check_weight(weight)
        validation.check_likelihood(likelihood, _LIKELIHOODS)
        validation.check_training_data(train_X, train_Y, train_Yvar)
        with torch.no_grad():
            X = self.transform_inputs(X=train_X, input_transform=input_transform)
        validation.check_long_format(X, train_Y, task_feature)
        tasks, column, d = self.get_all_tasks(X, task_feature, output_tasks)
        tasks = sorted(tasks if all_tasks is None else all_tasks)
        if outcome_transform == DEFAULT:
            outcome_transform = RobustStratifiedStandardize(column, torch.tensor(tasks), dtype=X.dtype).to(X)
        if covar_module is None:
            covar_module = default_kernel(d, torch.Size(), [other for other in range(d + 1) if other != column])
        super().__init__(
            train_X,
            train_Y,
            task_feature,
            train_Yvar=train_Yvar,
            mean_module=mean_module,
            covar_module=covar_module,
            likelihood=likelihood,
            task_covar_prior=task_covar_prior,
            output_tasks=output_tasks,
            rank=rank,
            all_tasks=all_tasks,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
            validate_task_values=validate_task_values,
        )
        validation.check_training_data(X, self.train_targets.unsqueeze(-1), None, after=" after the transforms")
        validation.check_fixed_noise(self.likelihood, self.train_targets)
        self._map_likelihood(tasks, given=likelihood is not None)
        name_prior(self.covar_module.kernels[1])
        self.weight = weight_function
        if weight_function is None:
            self.register_buffer("law", self.prior_law())
        elif not isinstance(weight_function, Constant):
            self.weight = ByOutput(*(copy.deepcopy(weight_function) for _ in tasks))
        self._process = None
        self.to(train_X)

    def _map_likelihood(self, tasks: list[int], given: bool) -> None:
        """See that the learned noise of tasks other than 0 to T − 1 is theirs."""
        if self._task_mapper is None or not isinstance(self.likelihood, HadamardGaussianLikelihood):
            return
        if given:
            raise ValueError(
                f"the tasks are {tasks}, but a HadamardGaussianLikelihood knows 0 to {len(tasks) - 1} only: number "
                "them so, or leave likelihood out"
            )
        own = self.likelihood.noise_covar
        self.likelihood = MappedTaskLikelihood(tasks, self._task_feature)
        self.likelihood.noise_covar = own

    @classmethod
    def construct_inputs(
        cls,
        training_data: SupervisedDataset | MultiTaskDataset,
        task_feature: int,
        output_tasks: list[int] | None = None,
        task_covar_prior: Prior | _DefaultType | None = DEFAULT,
        prior_config: dict[str, Any] | None = None,
        rank: int | None = None,
        map_heterogeneous_to_full: bool = False,
        weight: str | WeightFunction = "learned",
    ) -> dict[str, Any]:
        """Arguments of the constructor from a data set.

        Args:
            training_data: inputs with tasks, observations and, if known, noise variances.
            task_feature, output_tasks, task_covar_prior, prior_config, rank, map_heterogeneous_to_full: as in BoTorch.
            weight: as in the constructor.
        """
        validation.check_weight(weight)
        arguments = super().construct_inputs(
            training_data, task_feature, output_tasks, task_covar_prior, prior_config, rank, map_heterogeneous_to_full
        )
        return {**arguments, "weight": weight}

    def training_inputs(self) -> Tensor:
        """The training inputs after the input transform, ``... x n x (d + 1)``."""
        X: Tensor = self.transform_inputs(self.train_inputs[0]) if self.training else self.train_inputs[0]
        return X

    def prior_inputs(self, X: Tensor) -> Tensor:
        """Transformed inputs with the numbers of the tasks, from 0 to T − 1, instead of their values."""
        before, number, after = self._split_inputs(X)
        return torch.cat([before, number.to(X), after], dim=-1)

    def prior_mean(self) -> TaskMean:
        """The prior mean as a module of these inputs."""
        return TaskMean(self.mean_module, self._task_feature)

    def tasks(self, X: Tensor) -> Tasks:
        """The tasks of transformed inputs."""
        before, number, after = self._split_inputs(X)
        return Tasks(torch.cat([before, after, number.to(X)], dim=-1), self.num_tasks)

    def law_shape(self) -> torch.Size:
        """One law for each task."""
        return torch.Size([self.num_tasks])

    def row_noise(self) -> Tensor:
        """Noise variance of each observation, ``... x n``: that of its task, or known."""
        noise: Tensor = self.likelihood.noise  # T, 1 or ... x n
        if isinstance(self.likelihood, HadamardGaussianLikelihood):
            noise = noise[self.tasks(self.training_inputs()).number]
        shape = torch.broadcast_shapes(noise.shape, self.train_targets.shape)  # type: ignore[no-untyped-call]
        return noise.expand(shape)

    def _task_noise(self) -> Tensor:
        """Noise variance of each task, ``... x T``; of known ones the mean."""
        noise: Tensor = self.likelihood.noise
        if isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
            return self.tasks(self.training_inputs()).means(noise)
        return noise.expand(self.num_tasks)

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Any:
        """The posterior of f, or of new observations; differentiable in the inputs.

        Args:
            X: ``... x q x (d + 1)`` inputs with tasks, for one output; or ``... x q x d`` without, for one output for
                each of some tasks.
            output_indices: these tasks. Default: ``output_tasks``.
            observation_noise: whether to add the noise variance of inliers: that of the task, or with a learned law
                the law's.
            posterior_transform: applied to the result.
        """
        transform = getattr(self, "outcome_transform", None)
        if not isinstance(transform, StratifiedStandardize) or X.shape[-1] != self.num_non_task_features:
            return super().posterior(X, output_indices, observation_noise, posterior_transform)
        # BoTorch's transform would look for the tasks in a column that X does not have.
        self.eval()
        tasks = self._output_tasks if output_indices is None else list(output_indices)
        points = self.transform_inputs(self._with_tasks(X, tasks))
        with gpt_posterior_settings():
            normal = self._apply_noise(points, self(points), observation_noise)
        if len(tasks) > 1:
            mean = normal.mean.unflatten(-1, (len(tasks), -1)).mT
            normal = MultitaskMultivariateNormal(mean, normal.lazy_covariance_matrix, interleaved=False)
        posterior = standardize_of_tasks(transform, tasks).untransform_posterior(GPyTorchPosterior(normal), X)
        return posterior if posterior_transform is None else posterior_transform(posterior=posterior, X=X)

    def _with_tasks(self, X: Tensor, tasks: Sequence[int]) -> Tensor:
        """Inputs ``... x q x d`` with each of m tasks in turn: ``... x mq x (d + 1)``."""
        validation.check_tasks(tasks, self._expected_task_values)
        parts = [insert_task(X, X.new_full(X.shape[:-1], task), self._task_feature) for task in tasks]
        return torch.cat(parts, dim=-2)

    def _apply_noise(
        self, X: Tensor, mvn: MultivariateNormal, observation_noise: bool | Tensor = False
    ) -> MultivariateNormal:
        if isinstance(observation_noise, Tensor) or not observation_noise:
            return super()._apply_noise(X, mvn, observation_noise)
        noise = self._task_noise() * (1.0 if self.weight is not None else self.law_variance())
        of_rows = self.tasks(X).of_rows(noise).expand(mvn.mean.shape)
        return MultivariateNormal(mvn.mean, mvn.lazy_covariance_matrix.add_diagonal(of_rows))

    def condition_on_observations(self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any) -> Self:
        """The model of all the data with the same hyperparameters and transforms.

        Args:
            X: ``... x n' x (d + 1)`` new inputs with tasks; or ``... x n' x d``, where all m output tasks are observed.
            Y: ``... x n' x 1`` new observations, or ``... x n' x m``; with further batch dimensions, one model each.
            noise: variances of the shape of Y after transforms, if the data have known ones. Default: the mean of each
                task's.
            kwargs: passed on to ``get_fantasy_model``.
        """
        self.eval()  # in training mode the transforms would learn from the new data
        if X.shape[-1] == self.num_non_task_features:
            validation.check_observations(X, Y, self, self.num_outputs, columns=self.num_non_task_features)
            X, Y = self._with_tasks(X, self._output_tasks), _stacked(Y)
            noise = None if noise is None else _stacked(noise)
        validation.check_observations(X, Y, self, 1)
        validation.check_tasks(set(X[..., self._task_feature].flatten().tolist()), self._expected_task_values)
        if noise is None and isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
            noise = self.tasks(self.transform_inputs(X)).of_rows(self._task_noise()).unsqueeze(-1).expand(Y.shape)
        if Y.ndim > X.ndim and fantasizing.off():
            X = X.expand(*Y.shape[:-2], *X.shape[-2:])
        model: Self = super().condition_on_observations(X, Y, noise=noise, **kwargs)
        return model

    def fantasize(self, X: Tensor, sampler: Any, observation_noise: Tensor | None = None, **kwargs: Any) -> Self:
        """The model conditioned on draws of new observations, as in BoTorch.

        Args:
            X: inputs, with or without tasks: see :meth:`condition_on_observations`.
            sampler: of BoTorch.
            observation_noise: not supported by BoTorch's multi-task models.
            kwargs: passed on to :meth:`condition_on_observations`.
        """
        if observation_noise is not None:
            raise NotImplementedError("observation_noise is that of the tasks: leave it out")
        kwargs.pop("propagate_grads", None)
        with fantasizing():
            return self.condition_on_observations(X, sampler(self.posterior(X, observation_noise=True)), **kwargs)

    @property
    def noise_law(self) -> dict[int, NoiseLaw]:
        """The noise law of each task after the outcome transform, by its value; of a batch, that of the first."""
        tasks = sorted(self._expected_task_values)
        if self.weight is not None:
            return {task: NoiseLaw.normal() for task in tasks}
        weighed = self._weighed_rows()
        assert weighed.tasks is not None
        spreads = weighed.tasks.spreads(weighed.residual).reshape(-1, self.num_tasks)[0]
        law = self.law.double()
        return dict(zip(tasks, noise_laws(law[:, :-1], law[:, -1] * spreads), strict=True))

    def separable(self) -> dict[Index, RCGP] | None:
        """This model, of its observed tasks; ``None`` if it is a batch, shares its noise or learns an input transform.

        The model is in evaluation mode.
        """
        shared = type(self.likelihood) is GaussianLikelihood
        if shared or self.learns_inputs() or self.train_inputs[0].ndim > 2:
            return None
        tasks = self.tasks(self.train_inputs[0].double())
        observed, output = torch.unique(tasks.number, return_inverse=True)
        known = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        mean = TaskMean(copy.deepcopy(self.mean_module).double(), self._task_feature)
        weights = [Constant()] * len(observed)
        if isinstance(self.weight, ByOutput):
            weights = [copy.deepcopy(self.weight.outputs[task]).double() for task in observed.tolist()]
        noise = self._task_noise().detach().double()
        single = MultiOutputRCGP(
            tasks.inputs[:, :-1],
            self.train_targets.double(),
            output=output,
            kernel=TaskKernel(copy.deepcopy(self.covar_module).double(), self._task_feature, observed.tolist()),
            mean=[MeanOfTask(mean, task) for task in observed.tolist()],
            weight=weights,
            noise=1.0 if known else noise[observed],
            sample_weight=self.likelihood.noise.detach().double().reciprocal() if known else None,
        )
        if known:
            single.raw_noise.requires_grad_(False)
        else:
            take_noise(single, self.likelihood, noise[observed], lambda m: noise.index_copy(0, observed, m.noise))
        return {(): single}

    def named_laws(self, index: Index) -> dict[str, NoiseLaw]:
        """The noise law of each observed task, by its value."""
        number = self.tasks(self.train_inputs[0]).number
        return {
            f"task {task}: ": law for i, (task, law) in enumerate(self.noise_law.items()) if bool((number == i).any())
        }

    def write_back(self, index: Index, single: RCGP) -> None:
        """Take the hyperparameters of a model from :meth:`separable`."""
        observed = single.kernel.number.long()
        write_slice(self.covar_module, (), single.kernel.base)
        write_slice(self.mean_module, (), single.mean.means[0].mean.mean)
        if isinstance(self.weight, ByOutput):
            for task, weight in zip(observed.tolist(), single.output_weights(), strict=True):
                write_slice(self.weight.outputs[task], (), weight)
        if not isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
            noise = self.likelihood.noise.detach().clone()
            bound = self.likelihood.noise_covar.raw_noise_constraint
            noise[observed] = above_bound(bound, single.noise.detach()).to(noise)
            self.likelihood.noise = noise

    def write_laws(self, index: Index, single: RCGP, laws: Sequence[NoiseLaw]) -> None:
        """Take the noise laws of a model from :meth:`separable`."""
        residual, observed = single.residual(), single.kernel.number.tolist()
        for task, rows, law in zip(observed, single.output_rows(), laws, strict=True):
            self.law[int(task)] = self.law.new_tensor(law_numbers(law, robust_spread(residual[rows])))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        self._load_state(state_dict, prefix, self.covar_module.kernels[0], f"{prefix}covar_module.kernels.0.")
        super()._load_from_state_dict(state_dict, prefix, *args)


def _stacked(values: Tensor) -> Tensor:
    """Values ``... x q x m`` of m tasks, one task after the other: ``... x mq x 1``."""
    return values.mT.flatten(-2).unsqueeze(-1)
