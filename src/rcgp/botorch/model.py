"""The robust conjugate GP as a BoTorch model: hyperparameters in batches, BoTorch's surface, the core's mathematics.

BoTorch's base class brings transforms and batches of outputs, :class:`TrainingDataModel` what is done with training
data. Here are predictions, from top to bottom: ``posterior`` asks the base class, which asks ``model(X)``; that is the
prior conditioned on pseudo-data, which are made of weights. ``forward`` is what BoTorch makes leave-one-out predictions
of.
"""

from __future__ import annotations

import copy
from typing import Any, cast

import gpytorch
import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.models.utils.gpytorch_modules import get_gaussian_likelihood_with_lognormal_prior
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from linear_operator import to_linear_operator
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from rcgp.botorch.defaults import default_kernel
from rcgp.botorch.pathwise import register_paths
from rcgp.botorch.training_data import TrainingDataModel
from rcgp.botorch.transforms import RobustStandardize
from rcgp.botorch.validation import (
    check_fixed_noise,
    check_likelihood,
    check_outputs,
    check_test_inputs,
    check_training_data,
    check_weight,
)
from rcgp.botorch.weighing import Weighed, weigh
from rcgp.core.exact import ExactPosterior, condition
from rcgp.core.loo import LeaveOneOut, leave_one_out
from rcgp.models.exact import plain_attributes, same
from rcgp.models.kernel_matrix import dense_kernel
from rcgp.models.posterior import PosteriorProcess
from rcgp.weights import InverseMultiquadric, WeightFunction

__all__ = ["SingleTaskRCGP"]


class SingleTaskRCGP(TrainingDataModel):
    """A ``SingleTaskGP`` that outliers cannot break.

    Robust and conjugate GP regression (:class:`rcgp.RCGP`) with BoTorch's constructor and surface: batches, several
    independent outputs, transforms, fantasies. Put in the place of ``SingleTaskGP`` in a script it needs no other
    change: ``fit_gpytorch_mll`` chooses its hyperparameters robustly, whatever objective it is given. The noise of new
    observations is σ² everywhere.

    Weights are a function of data and hyperparameters. So ``condition_on_observations`` gives what a model of all the
    data with the same hyperparameters is, and new observations have weights of their own.

    Args:
        train_X: ``... x n x d`` inputs.
        train_Y: ``... x n x m`` observations of m outputs.
        train_Yvar: ``... x n x m`` known noise variances. Default: one, learnt, for each output.
        likelihood: a ``GaussianLikelihood``, which holds σ², or a ``FixedNoiseGaussianLikelihood``, a variance for each
            row, ``... x n`` or ``... x m x n``, after the outcome transform; no subclass. Default: BoTorch's, with its
            prior.
        covar_module: kernel. Default: BoTorch's squared exponential with its priors, times an output scale, which
            ``RobustStandardize`` leaves to be learnt.
        mean_module: prior mean. Default: a constant, learnt.
        outcome_transform: Default: :class:`RobustStandardize`; ``None`` for none.
        input_transform: as in BoTorch.
        weight: for ``centre="prior"``, a weight function of :mod:`rcgp.weights`. Default: ``InverseMultiquadric()``.
        centre: ``"adaptive"`` centres each weight on what the other rows predict; ``"prior"``, the paper's, on the
            prior mean.

    Raises:
        InputDataError: for values that are NaN or infinite, naming argument, row and column.
        BotorchTensorDimensionError: for shapes that do not fit.
        TypeError: for a likelihood of another kind.
        ValueError: for a likelihood that learns noise beside a known one, and a weight or centre that is none.
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
        weight: WeightFunction | None = None,
        centre: str = "adaptive",
    ) -> None:
        check_weight(weight, centre)
        check_likelihood(likelihood)
        check_training_data(train_X, train_Y, train_Yvar)
        self._validate_tensor_args(X=train_X, Y=train_Y, Yvar=train_Yvar)
        super().__init__()
        self.centre = centre
        if outcome_transform == DEFAULT:
            outcome_transform = RobustStandardize(m=train_Y.shape[-1], batch_shape=train_X.shape[:-2])
        with torch.no_grad():
            transformed_X = self.transform_inputs(X=train_X, input_transform=input_transform)
        if outcome_transform is not None:
            outcome_transform.train()
            train_Y, train_Yvar = outcome_transform(Y=train_Y, Yvar=train_Yvar, X=transformed_X)
            check_training_data(transformed_X, train_Y, train_Yvar, after=" after the transforms")
        self._set_dimensions(train_X=train_X, train_Y=train_Y)
        train_X, train_Y, train_Yvar = self._transform_tensor_args(X=train_X, Y=train_Y, Yvar=train_Yvar)
        batch = self._aug_batch_shape
        self.train_inputs, self.train_targets = (train_X.detach().clone(),), train_Y.detach().clone()
        if likelihood is None and train_Yvar is None:
            likelihood = get_gaussian_likelihood_with_lognormal_prior(batch_shape=batch)
        elif likelihood is None:
            likelihood = FixedNoiseGaussianLikelihood(noise=train_Yvar, batch_shape=batch)
        check_fixed_noise(likelihood, self.train_targets)
        self.likelihood = likelihood
        self.mean_module = gpytorch.means.ConstantMean(batch_shape=batch) if mean_module is None else mean_module
        self.has_default_kernel = covar_module is None
        if covar_module is None:
            covar_module = default_kernel(transformed_X.shape[-1], batch)
        self.covar_module = covar_module
        self.weight = None if centre == "adaptive" else weight or InverseMultiquadric()
        if outcome_transform is not None:
            self.outcome_transform = outcome_transform
        if input_transform is not None:
            self.input_transform = input_transform
        self.to(train_X)
        # Modules and tensors that the posterior was made from, and the posterior.
        self._process: tuple[list[Any], list[Tensor], PosteriorProcess] | None = None

    @classmethod
    def construct_inputs(
        cls, training_data: SupervisedDataset, weight: WeightFunction | None = None, centre: str = "adaptive"
    ) -> dict[str, Any]:
        """Arguments of the constructor from a data set, for what is built by BoTorch or Ax.

        Args:
            training_data: inputs, observations and, where known, noise variances.
            weight, centre: as in the constructor; in Ax, entries of ``model_options``.

        Raises:
            ValueError, TypeError: as the constructor would, for a weight or centre that is none.
        """
        check_weight(weight, centre)
        return {**super().construct_inputs(training_data), "weight": weight, "centre": centre}

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
            output_indices: which outputs. Default: all.
            observation_noise: add σ², or these variances.
            posterior_transform: applied to the result.
        """
        check_outputs(output_indices, self.num_outputs, "output_indices")
        if output_indices is None or self.num_outputs == 1:
            return super().posterior(X, None, observation_noise, posterior_transform)
        if isinstance(observation_noise, Tensor):
            observation_noise = observation_noise[..., output_indices]
        return self.subset_output(output_indices).posterior(X, None, observation_noise, posterior_transform)

    def __call__(self, X: Tensor, *_: Any, **__: Any) -> MultivariateNormal:
        """The posterior of f at transformed inputs; in training mode the prior, as with GPyTorch's models."""
        if self.training:
            return self._prior(self.training_inputs() if X is self.train_inputs[0] else self.transform_inputs(X))
        mean, covariance = self._posterior_process().joint(check_test_inputs(X, self.train_inputs[0]))
        return MultivariateNormal(mean, to_linear_operator(covariance))

    def given_data(self) -> tuple[Tensor, ExactPosterior]:
        """The prior mean at the training inputs, ``... x n``, and the posterior of f there, relative to that mean.

        Of transformed data, in double precision. Cost O(n³) where something has changed since the last prediction.
        """
        process = self._posterior_process()
        return process.prior_mean(process.support), cast(ExactPosterior, process.given)  # nothing sparse is made here

    def _posterior_process(self) -> PosteriorProcess:
        """The posterior at the current hyperparameters, recomputed only if something that it depends on has changed."""
        X, y = self.train_inputs[0], self.train_targets
        follows = torch.is_grad_enabled() and (X.requires_grad or y.requires_grad)  # a fantasy's data
        with torch.inference_mode(False), torch.set_grad_enabled(follows):
            # Values are compared, not version counters: GPyTorch's setters write through .data, unseen by those.
            tensors = [tensor.detach() for tensor in (X, y, self.row_noise(), *self.parameters(), *self.buffers())]
            parts = [part for module in (self.covar_module, self.mean_module) for part in module.modules()]
            modules = [*parts, *(said for part in parts for said in plain_attributes(part)), self.weight]
            known = self._process
            if known is not None and not follows and same(known[0], modules, known[1], tensors):
                return known[2]
            weighed, mean, kernel = self._weighed(), _frozen(self.mean_module), _frozen(self.covar_module)
            process = PosteriorProcess(mean, kernel, weighed.inputs, condition(weighed.K, weighed.pseudo))
            # A graph can be used once, and belongs to the data that it came from.
            self._process = None if follows else (modules, [tensor.clone() for tensor in tensors], process)
        return process

    def _weighed(self) -> Weighed:
        """The training data and what each row counts, in double precision; hyperparameters are constants."""
        kernel, mean, weight = (_frozen(module) for module in (self.covar_module, self.mean_module, self.weight))
        X, y = self.training_inputs().double(), self.train_targets.double()
        batch = torch.broadcast_shapes(X.shape[:-2], y.shape[:-1])  # type: ignore[no-untyped-call]
        X = X.expand(*batch, *X.shape[-2:])
        return weigh(X, dense_kernel(kernel, X, X), y - mean(X), self.row_noise().detach().double(), weight)

    def _prior(self, X: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(X), self.covar_module(X))

    def forward(self, X: Tensor) -> MultivariateNormal:
        """What is known of f without the observations at ``X``: the prior or, at the training inputs, leave-one-out.

        BoTorch's ``efficient_loo_cv`` takes what this returns for the prior of independent rows, and adds σ²: so its
        results are the leave-one-out predictions of the robust model.
        """
        if X is not self.train_inputs[0]:
            return self._prior(X)
        mean, variance = self.latent_leave_one_out()
        return MultivariateNormal(mean, DiagLinearOperator(variance))

    def latent_leave_one_out(self) -> LeaveOneOut:
        """Mean and variance of f at each training input given all other observations, ``... x n``. Cost O(n³)."""
        with torch.no_grad():
            weighed = self._weighed()
            mean, variance = leave_one_out(weighed.K, weighed.pseudo)
            prior = self.train_targets - weighed.residual
            return LeaveOneOut((mean + prior).to(self.train_targets), variance.to(self.train_targets))

    def weights(self) -> Tensor:
        """How far each observation is trusted, ``... x n x m``: 1 is full trust, near 0 is an outlier.

        With ``centre="prior"`` the weight w̃; with adaptive centres 1 within the threshold of a row, 0.71 at it.
        """
        with torch.no_grad():
            w = self._weighed().trust.to(self.train_targets)
        return w.mT if self.num_outputs > 1 else w.unsqueeze(-1)

    def custom_fit(
        self, mll: gpytorch.mlls.MarginalLogLikelihood, **kwargs: Any
    ) -> gpytorch.mlls.MarginalLogLikelihood:
        """What ``fit_gpytorch_mll`` does to this model: see :func:`rcgp.botorch.fitting.fit_for_botorch`."""
        from rcgp.botorch.fitting import fit_for_botorch

        return fit_for_botorch(self, mll, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        # What can be recomputed is neither pickled nor copied.
        return {**self.__dict__, "_process": None}


def _frozen(module: Any) -> Any:
    """A copy in double precision whose parameters are constants."""
    return None if module is None else copy.deepcopy(module).double().requires_grad_(False)


register_paths(SingleTaskRCGP)
