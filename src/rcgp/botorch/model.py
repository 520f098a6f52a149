"""The robust conjugate GP as a BoTorch model of one output, or several independent ones.

BoTorch's base class handles transforms and batches of outputs, :class:`TrainingDataModel` the training data and
:class:`RobustModel` weights and predictions.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import product
from typing import Any

import gpytorch
import torch
from botorch import settings
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.models.utils import check_min_max_scaling
from botorch.models.utils.gpytorch_modules import get_gaussian_likelihood_with_lognormal_prior
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from torch import Tensor

from rcgp.botorch import validation
from rcgp.botorch.defaults import RobustStandardize, default_kernel
from rcgp.botorch.robust_model import RobustModel, above_bound, law_numbers, noise_laws, take_noise
from rcgp.botorch.training_data import Index, TrainingDataModel, is_batched, sliced, write_slice
from rcgp.botorch.weighing import law_parts
from rcgp.models import RCGP
from rcgp.models.defaults import robust_spread
from rcgp.weights import Constant, NoiseLaw, WeightFunction

__all__ = ["SingleTaskRCGP"]


class SingleTaskRCGP(TrainingDataModel, RobustModel):
    """A ``SingleTaskGP`` that outliers cannot break.

    Robust conjugate GP regression (:class:`rcgp.RCGP`) with BoTorch's constructor and methods: batches, several
    independent outputs, transforms, fantasies. It replaces ``SingleTaskGP`` in a script without any other change:
    ``fit_gpytorch_mll`` learns the noise law of each output with the hyperparameters. If the noise is normal, the model
    equals ``SingleTaskGP`` with the same kernel and transforms.

    Weights are a function of data, hyperparameters and noise law. The law is part of the state, six numbers per output,
    so ``condition_on_observations`` equals a model of all the data with the same state. Before a fit the law is its
    prior, with one outlier in thirteen rows.

    Args:
        train_X: ``... x n x d`` inputs.
        train_Y: ``... x n x m`` observations of m outputs.
        train_Yvar: ``... x n x m`` known noise variances. Default: one per output, learned.
        likelihood: a ``GaussianLikelihood``, or a ``FixedNoiseGaussianLikelihood`` with the noise of each row, ``... x
            n`` or ``... x m x n``, after the outcome transform; no subclass. Default: BoTorch's, with its prior.
        covar_module: kernel. Default: BoTorch's squared exponential with its priors, times a learned output scale.
        mean_module: prior mean. Default: a learned constant.
        outcome_transform: Default: :class:`RobustStandardize`; ``None`` for none.
        input_transform: as in BoTorch.
        weight: ``"learned"``, from a learned noise law; ``"imq"`` or ``"se"``, the paper's inverse multiquadric or
            squared exponential around the prior mean; ``"constant"``, an ordinary GP; or a weight function of
            :mod:`rcgp.weights`.

    Raises:
        InputDataError: for NaN or infinite values, naming argument, row and column.
        BotorchTensorDimensionError: for inconsistent shapes.
        TypeError: for a likelihood of another kind.
        ValueError: for a likelihood that learns noise in addition to known noise, and an unknown weight.
    """

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        likelihood: GaussianLikelihood | FixedNoiseGaussianLikelihood | None = None,
        covar_module: gpytorch.kernels.Kernel | None = None,
        mean_module: gpytorch.means.Mean | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        weight: str | WeightFunction = "learned",
    ) -> None:
        weight_function = validation.check_weight(weight)
        validation.check_likelihood(likelihood)
        validation.check_training_data(train_X, train_Y, train_Yvar)
        self._validate_tensor_args(X=train_X, Y=train_Y, Yvar=train_Yvar)
        super().__init__()
        if outcome_transform == DEFAULT:
            outcome_transform = RobustStandardize(m=train_Y.shape[-1], batch_shape=train_X.shape[:-2])
        with torch.no_grad():
            transformed_X = self.transform_inputs(X=train_X, input_transform=input_transform)
        if outcome_transform is not None:
            outcome_transform.train()
            train_Y, train_Yvar = outcome_transform(Y=train_Y, Yvar=train_Yvar, X=transformed_X)
            validation.check_training_data(transformed_X, train_Y, train_Yvar, after=" after the transforms")
        self._set_dimensions(train_X=train_X, train_Y=train_Y)
        train_X, train_Y, train_Yvar = self._transform_tensor_args(X=train_X, Y=train_Y, Yvar=train_Yvar)
        batch = self._aug_batch_shape
        self.train_inputs, self.train_targets = (train_X.detach().clone(),), train_Y.detach().clone()
        if likelihood is None and train_Yvar is None:
            likelihood = get_gaussian_likelihood_with_lognormal_prior(batch_shape=batch)
        elif likelihood is None:
            likelihood = FixedNoiseGaussianLikelihood(noise=train_Yvar, batch_shape=batch)
        validation.check_fixed_noise(likelihood, self.train_targets)
        self.likelihood = likelihood
        self.mean_module = gpytorch.means.ConstantMean(batch_shape=batch) if mean_module is None else mean_module
        if covar_module is None:
            if settings.validate_input_scaling.on():  # BoTorch's default kernel is for the unit cube
                check_min_max_scaling(transformed_X)
            covar_module = default_kernel(transformed_X.shape[-1], batch)
        self.covar_module = covar_module
        self.weight = weight_function
        if self.weight is None:
            self.register_buffer("law", self.prior_law())
        if outcome_transform is not None:
            self.outcome_transform = outcome_transform
        if input_transform is not None:
            self.input_transform = input_transform
        self.to(train_X)
        self._process = None

    @classmethod
    def construct_inputs(
        cls, training_data: SupervisedDataset, weight: str | WeightFunction = "learned"
    ) -> dict[str, Any]:
        """Arguments of the constructor from a data set.

        Args:
            training_data: inputs, observations and, if known, noise variances.
            weight: as in the constructor; in Ax, an entry of ``model_options``.
        """
        validation.check_weight(weight)
        return {**super().construct_inputs(training_data), "weight": weight}

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Any:
        """The posterior of f, or of new observations, at ``... x q x d`` inputs; differentiable in them.

        Args:
            X: the inputs.
            output_indices: the outputs. Default: all.
            observation_noise: whether to add the noise variance of inliers: σ², or with a learned law the law's. A
                tensor gives the variances.
            posterior_transform: applied to the result.
        """
        if isinstance(observation_noise, Tensor) and output_indices:
            first = output_indices[0]  # a ModelListGP asks for all outputs, counted over all its models
            if list(output_indices) == list(range(first, first + self.num_outputs)):
                output_indices = None
        validation.check_outputs(output_indices, self.num_outputs, "output_indices")
        if output_indices is None or self.num_outputs == 1:
            return super().posterior(X, None, observation_noise, posterior_transform)
        if isinstance(observation_noise, Tensor) and observation_noise.shape[-1] == self.num_outputs:
            observation_noise = observation_noise[..., output_indices]
        return self.subset_output(output_indices).posterior(X, None, observation_noise, posterior_transform)

    def _apply_noise(
        self, X: Tensor, mvn: MultivariateNormal, observation_noise: bool | Tensor = False
    ) -> MultivariateNormal:
        if self.weight is not None or isinstance(observation_noise, Tensor) or not observation_noise:
            return super()._apply_noise(X, mvn, observation_noise)
        noise = self.likelihood.noise.mean(dim=-1) * self.law_variance()
        return self.likelihood(mvn, X, noise=noise.unsqueeze(-1).expand(mvn.batch_shape + mvn.event_shape))

    @property
    def noise_law(self) -> NoiseLaw | list[NoiseLaw]:
        """The noise law after the outcome transform; for a batch, a list with outputs last."""
        if self.weight is not None:
            laws = [NoiseLaw.normal() for _ in range(self._aug_batch_shape.numel())]
        else:
            widths = law_parts(self.law.double(), self._weighed_rows().residual)[1].squeeze(-1)
            shares = self.law[..., :-1].expand(*widths.shape, -1).reshape(-1, self.law.shape[-1] - 1)
            laws = noise_laws(shares, widths.flatten())
        return laws if self._aug_batch_shape else laws[0]

    def _for_users(self, values: Tensor) -> Tensor:
        """Values of rows, ``... x n`` with outputs before rows, as ``... x n x m``."""
        values = values.to(self.train_targets, copy=True)
        return values.mT if self.num_outputs > 1 else values.unsqueeze(-1)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        self._load_state(state_dict, prefix, self.covar_module, f"{prefix}covar_module.")
        super()._load_from_state_dict(state_dict, prefix, *args)

    def law_shape(self) -> torch.Size:
        """One law for each model of a batch, outputs last."""
        shape: torch.Size = self._aug_batch_shape
        return shape

    def separable(self) -> dict[Index, RCGP] | None:
        """Each model of a batch by its index; ``None`` if they share a hyperparameter or learn an input transform."""
        batch = self._aug_batch_shape
        modules = [self.covar_module, self.mean_module, self.likelihood]
        shared = self.weight is not None and batch and any(True for _ in self.weight.parameters())
        if shared or self.learns_inputs() or not all(is_batched(module, batch) for module in modules):
            return None
        return {index: self._take_out(index) for index in product(*map(range, batch))}

    def _take_out(self, index: Index) -> RCGP:
        """One model of a batch, in evaluation mode, as an :class:`rcgp.RCGP` in double precision."""
        shape, known = self._aug_batch_shape, isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        noise = self.row_noise().detach().double()[index]
        single = RCGP(
            self.train_inputs[0].double()[index],
            self.train_targets.double()[index],
            kernel=sliced(self.covar_module, shape, index).double(),
            mean=sliced(self.mean_module, shape, index).double(),
            weight=Constant() if self.weight is None else copy.deepcopy(self.weight),
            noise=1.0 if known else float(noise[0]),
            sample_weight=noise.reciprocal() if known else None,
        )
        if known:
            single.raw_noise.requires_grad_(False)
        else:
            take_noise(single, self.likelihood, noise[0], lambda module: module.noise)
        return single

    def named_laws(self, index: Index) -> dict[str, NoiseLaw]:
        """The noise law of one model of a batch, by the numbers of model and output."""
        laws = self.noise_law
        law = (
            laws[int(torch.arange(len(laws)).reshape(self._aug_batch_shape)[index])] if isinstance(laws, list) else laws
        )
        model, output = (index[:-1], index[-1:]) if self.num_outputs > 1 else (index, ())
        numbers = {"model ": model, "output ": output}
        name = ", ".join(kind + " ".join(map(str, found)) for kind, found in numbers.items() if found)
        return {f"{name}: " if name else "": law}

    def write_back(self, index: Index, single: RCGP) -> None:
        """Write the hyperparameters of one model to the batch."""
        write_slice(self.covar_module, index, single.kernel)
        write_slice(self.mean_module, index, single.mean)
        if self.weight is not None:
            write_slice(self.weight, (), single.weight)
        if not isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
            noise = self.likelihood.noise.detach().clone()
            bound = self.likelihood.noise_covar.raw_noise_constraint
            noise[index] = above_bound(bound, single.noise.detach()).to(noise)
            self.likelihood.noise = noise

    def write_laws(self, index: Index, single: RCGP, laws: Sequence[NoiseLaw]) -> None:
        """Write the noise law of one model to the batch."""
        (law,) = laws
        self.law[index] = self.law.new_tensor(law_numbers(law, robust_spread(single.residual())))
