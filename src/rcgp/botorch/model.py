"""The robust conjugate GP as a BoTorch model: constructor, weights and predictions.

BoTorch's base class handles transforms and batches of outputs, :class:`TrainingDataModel` the training data.
``posterior`` calls the base class, which calls ``model(X)``: the prior conditioned on pseudo-data, made from the
weights. BoTorch computes leave-one-out predictions from ``forward``.
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
from botorch.sampling.pathwise import GeneralizedLinearPath, KernelEvaluationMap, MatheronPath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from botorch.sampling.pathwise.prior_samplers import DrawKernelFeaturePaths
from botorch.sampling.pathwise.update_strategies import GaussianUpdate
from botorch.sampling.pathwise.utils import get_input_transform, get_output_transform
from botorch.utils.context_managers import delattr_ctx
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood, Likelihood
from gpytorch.models import ExactGP
from linear_operator import to_linear_operator
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from rcgp.botorch import validation
from rcgp.botorch.defaults import RobustStandardize, default_kernel
from rcgp.botorch.training_data import TrainingDataModel
from rcgp.botorch.weighing import Weighed, law_parts, weigh
from rcgp.core.exact import ExactPosterior, condition
from rcgp.core.loo import LeaveOneOut, leave_one_out
from rcgp.core.noise_law import PRIOR_COUNTS
from rcgp.models.kernel_matrix import dense_kernel
from rcgp.models.posterior import PosteriorProcess, plain_attributes, same
from rcgp.weights import NoiseLaw, WeightFunction
from rcgp.weights.noise_law import FLAGGED, OUTLIER_WIDTH, SCALES, spread_tail

__all__ = ["SingleTaskRCGP"]


class SingleTaskRCGP(TrainingDataModel):
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
            covar_module = default_kernel(transformed_X.shape[-1], batch)
        self.covar_module = covar_module
        #: The weight function; ``None`` if the noise law is learned.
        self.weight = weight_function
        if self.weight is None:
            self.register_buffer("law", self.prior_law())
        if outcome_transform is not None:
            self.outcome_transform = outcome_transform
        if input_transform is not None:
            self.input_transform = input_transform
        self.to(train_X)
        # The posterior, after the modules and tensors that it was computed from.
        self._process: tuple[list[Any], list[Tensor], PosteriorProcess] | None = None

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

    def prior_law(self) -> Tensor:
        """The prior noise law, ``... x 6``: shares of the scales and of outliers, and the half-width of the outliers'
        density in robust standard deviations of y − m(x)."""
        counts = self.train_targets.new_tensor(PRIOR_COUNTS)
        law = torch.cat([spread_tail(counts / counts.sum()), counts.new_tensor([OUTLIER_WIDTH])])
        return law.expand(*self._aug_batch_shape, len(law)).clone()

    def weighing(self) -> WeightFunction | Tensor:
        """The weight function or the noise law, for :func:`rcgp.botorch.weighing.weigh`."""
        return self.law if self.weight is None else self.weight

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
        squares = self.law.new_tensor(SCALES).square()
        good = self.law[..., : len(SCALES)]
        noise = self.likelihood.noise.mean(dim=-1) * (good @ squares) / good.sum(dim=-1)
        return self.likelihood(mvn, X, noise=noise.unsqueeze(-1).expand(mvn.batch_shape + mvn.event_shape))

    def __call__(self, X: Tensor, *_: Any, **__: Any) -> MultivariateNormal:
        """The posterior of f at transformed inputs; in training mode the prior, as in GPyTorch."""
        if self.training:
            known = torch.equal(X, self.train_inputs[0])
            return self._prior(self.training_inputs() if known else self.transform_inputs(X))
        mean, covariance = self._posterior_process().joint(validation.check_test_inputs(X, self.train_inputs[0]))
        return MultivariateNormal(mean, to_linear_operator(covariance))

    def given_data(self) -> tuple[Tensor, ExactPosterior]:
        """Prior mean at the training inputs, ``... x n``, and the posterior relative to it, in double precision."""
        process = self._posterior_process()
        return process.prior_mean(process.support), cast(ExactPosterior, process.given)  # never sparse

    def _posterior_process(self) -> PosteriorProcess:
        """The posterior at the current hyperparameters, recomputed if anything that it depends on has changed."""
        X, y = self.train_inputs[0], self.train_targets
        follows = torch.is_grad_enabled() and (X.requires_grad or y.requires_grad)  # a fantasy's data
        with torch.inference_mode(False), torch.set_grad_enabled(follows):
            # Compare values, not version counters: GPyTorch's setters write through .data, which those miss.
            tensors = [tensor.detach() for tensor in (X, y, self.row_noise(), *self.parameters(), *self.buffers())]
            parts = [part for module in (self.covar_module, self.mean_module) for part in module.modules()]
            modules = [*parts, *(value for part in parts for value in plain_attributes(part)), self.weight]
            known = self._process
            if known is not None and not follows and same(known[0], modules, known[1], tensors):
                return known[2]
            weighed, mean, kernel = self._weighed(), _frozen(self.mean_module), _frozen(self.covar_module)
            process = PosteriorProcess(mean, kernel, weighed.inputs, condition(weighed.K, weighed.pseudo))
            # A graph can be used only once.
            self._process = None if follows else (modules, [tensor.clone() for tensor in tensors], process)
        return process

    def _weighed(self) -> Weighed:
        """The training data and their weights, in double precision; hyperparameters are constants."""
        kernel, mean = _frozen(self.covar_module), _frozen(self.mean_module)
        weight = self.law.double() if self.weight is None else _frozen(self.weight)
        X, y = self.training_inputs().double(), self.train_targets.double()
        batch = torch.broadcast_shapes(X.shape[:-2], y.shape[:-1])  # type: ignore[no-untyped-call]
        X = X.expand(*batch, *X.shape[-2:])
        return weigh(X, dense_kernel(kernel, X, X), y - mean(X), self.row_noise().detach().double(), weight)

    def _prior(self, X: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(X), self.covar_module(X))

    def forward(self, X: Tensor) -> MultivariateNormal:
        """The prior of f at ``X``; at the training inputs, leave-one-out predictions of f.

        BoTorch's ``efficient_loo_cv`` treats the result as a prior of independent rows and adds σ², which gives the
        leave-one-out predictions of the robust model.
        """
        if not torch.equal(X, self.train_inputs[0]):
            return self._prior(self.transform_inputs(X) if self.training else X)
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
        """Weight w̃ of each observation, ``... x n x m``, from 0 to 1."""
        return self._for_users(self._weighed_rows().weight)

    def outlier_probability(self) -> Tensor:
        """Probability that each observation is an outlier or of the widest scale, ``... x n x m``; 0 without a law."""
        return self._for_users(self._weighed_rows().outlier_probability)

    def outliers(self) -> Tensor:
        """Mask of the observations with an outlier probability above one half, ``... x n x m``."""
        return self.outlier_probability() > FLAGGED

    @property
    def noise_law(self) -> NoiseLaw | list[NoiseLaw]:
        """The noise law after the outcome transform; for a batch, a list with outputs last."""
        if self.weight is not None:
            laws = [NoiseLaw.normal() for _ in range(self._aug_batch_shape.numel())]
        else:
            widths = law_parts(self.law.double(), self._weighed_rows().residual)[1].squeeze(-1)
            shares = self.law[..., :-1].expand(*widths.shape, -1).reshape(-1, self.law.shape[-1] - 1)
            laws = [
                NoiseLaw.normal() if row[0] == 1.0 else NoiseLaw(tuple(row[:-1]), row[-1], width)
                for row, width in zip(shares.double().tolist(), widths.flatten().tolist(), strict=True)
            ]
        return laws if self._aug_batch_shape else laws[0]

    def _weighed_rows(self) -> Weighed:
        with torch.no_grad():
            return self._weighed()

    def _for_users(self, values: Tensor) -> Tensor:
        """Values of rows, ``... x n`` with outputs before rows, as ``... x n x m``."""
        values = values.to(self.train_targets)
        return values.mT if self.num_outputs > 1 else values.unsqueeze(-1)

    def custom_fit(
        self, mll: gpytorch.mlls.MarginalLogLikelihood, **kwargs: Any
    ) -> gpytorch.mlls.MarginalLogLikelihood:
        """Called by ``fit_gpytorch_mll``: see :func:`rcgp.botorch.fitting.fit_for_botorch`."""
        from rcgp.botorch.fitting import fit_for_botorch

        return fit_for_botorch(self, mll, **kwargs)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load a state, also of a ``SingleTaskGP``, which has neither a noise law nor an output scale."""
        if self.weight is None:
            state_dict.setdefault(f"{prefix}law", self.law)
        kernel, at = self.covar_module, f"{prefix}covar_module."
        if isinstance(kernel, gpytorch.kernels.ScaleKernel) and f"{at}raw_lengthscale" in state_dict:
            for key in [key for key in state_dict if key.startswith(at)]:
                state_dict[f"{at}base_kernel.{key[len(at) :]}"] = state_dict.pop(key)
            one = torch.ones_like(kernel.raw_outputscale)
            state_dict[f"{at}raw_outputscale"] = kernel.raw_outputscale_constraint.inverse_transform(one)
            for key, value in kernel.state_dict().items():  # the prior of the output scale
                state_dict.setdefault(at + key, value)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __getstate__(self) -> dict[str, Any]:
        # The posterior is neither pickled nor copied: it can be recomputed.
        return {**self.__dict__, "_process": None}


def _frozen(module: Any) -> Any:
    """A copy in double precision whose parameters are constants."""
    return None if module is None else copy.deepcopy(module).double().requires_grad_(False)


# Draws of whole functions, for BoTorch's path-wise sampling. By Matheron's rule a draw from the posterior is a draw f
# from the prior and an update,
#
#     f(x) + k(x, X) (K + R)⁻¹ (m(X) + z − f(X) − ε),    ε ~ N(0, R),
#
# with pseudo-targets z, relative to the prior mean m, and pseudo-noises R. BoTorch draws f from random features of the
# kernel, evaluates the sum, and finds both functions by the class of a model.


def _draw(model: SingleTaskRCGP, *, sample_shape: torch.Size, prior_sampler: Any, update_strategy: Any) -> MatheronPath:
    """Draws of shape ``sample_shape x ...``: see ``botorch.sampling.pathwise.draw_matheron_paths``."""
    model.eval()  # as posterior does; otherwise transforms would learn from the draws
    with delattr_ctx(model, "outcome_transform"):  # it applies to the sum only
        prior_paths = prior_sampler(model=model, sample_shape=sample_shape)
    update_paths = update_strategy(model=model, sample_values=prior_paths.forward(model.train_inputs[0]))
    return MatheronPath(prior_paths, update_paths, output_transform=get_output_transform(model))


def _update(
    model: SingleTaskRCGP,
    likelihood: Likelihood,
    *,
    sample_values: Tensor,
    target_values: Tensor | None = None,
    points: Tensor | None = None,
    noise_covariance: Any = None,
    scale_tril: Any = None,
) -> GeneralizedLinearPath:
    """The update of draws from the prior, whose values at the training inputs are ``sample_shape x ... x n``.

    With S = R^(-1/2) and standard normal u its coefficients are α − S (I + SKS)⁻¹ (S (f(X) − m(X)) + u), which rows
    of infinite pseudo-noise leave finite. Cost n² per draw. ``target_values`` replace the pseudo-targets. Other points
    or another noise covariance make it BoTorch's update of an ordinary GP, of the observations by default.
    """
    if not (points is None and noise_covariance is None and scale_tril is None):
        return GaussianUpdate.dispatch(ExactGP, GaussianLikelihood)(
            model,
            likelihood,
            sample_values=sample_values,
            target_values=target_values,
            points=points,
            noise_covariance=noise_covariance,
            scale_tril=scale_tril,
        )
    prior_mean, given = model.given_data()
    s, alpha = given.s, given.alpha
    f = sample_values.double() - prior_mean
    if target_values is not None:
        f, alpha = f - (target_values.double() - prior_mean), torch.zeros_like(alpha)
    u = torch.randn_like(sample_values).double()
    columns = (s * f + u).reshape(-1, *s.shape).movedim(0, -1)  # ... x n x draws: one L for all of them
    solved = torch.cholesky_solve(columns, given.L).movedim(-1, 0).reshape(f.shape)
    kernels = KernelEvaluationMap(model.covar_module, model.train_inputs[0], get_input_transform(model))
    return GeneralizedLinearPath(kernels, (alpha - s * solved).to(sample_values))


DrawKernelFeaturePaths.add((SingleTaskRCGP,), DrawKernelFeaturePaths.dispatch(ExactGP))
DrawMatheronPaths.add((SingleTaskRCGP,), _draw)
GaussianUpdate.add((SingleTaskRCGP, Likelihood), _update)
