"""What the robust models of BoTorch share: noise law, weights, and the prior conditioned on pseudo-data.

BoTorch's base classes handle transforms and outputs, :class:`TrainingData` the training data. ``posterior`` calls the
base class, which calls ``model(X)``: the prior conditioned on pseudo-data, made from the weights. BoTorch computes
leave-one-out predictions from ``forward``.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import gpytorch
import torch
from gpytorch.constraints import Interval
from gpytorch.distributions import MultivariateNormal
from linear_operator import to_linear_operator
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from rcgp.botorch import validation
from rcgp.botorch.training_data import Index, TrainingData
from rcgp.botorch.weighing import Tasks, Weighed, weigh
from rcgp.core.exact import ExactPosterior, LeaveOneOut, condition, leave_one_out
from rcgp.core.noise_law import PRIOR_COUNTS
from rcgp.models import RCGP
from rcgp.models.defaults import Between
from rcgp.models.kernel_matrix import dense_kernel
from rcgp.models.posterior import PosteriorProcess, plain_attributes, same
from rcgp.training.judgement import Judgement, judge_outputs
from rcgp.weights import NoiseLaw, WeightFunction
from rcgp.weights.noise_law import FLAGGED, OUTLIER_WIDTH, SCALES, spread_tail

__all__ = ["RobustModel", "above_bound", "law_numbers", "noise_laws", "take_noise"]

# Values on a bound are moved off it by this relative margin: most constraints only approach their bounds.
_MARGIN = 1e-6


class Conditioned(NamedTuple):
    """The training data with their weights, and the posterior given these."""

    weighed: Weighed
    process: PosteriorProcess


class RobustModel(TrainingData):
    """A mixin for one of BoTorch's models, which has the kernel, the mean and the likelihood.

    Weights are a function of data, hyperparameters and noise laws. The laws are part of the state, six numbers each.

    Attributes:
        law: ``... x 6`` noise laws; missing with a weight function.
        weight: the weight function; ``None`` if noise laws are learned.
    """

    law: Tensor
    weight: WeightFunction | None
    mean_module: Any
    covar_module: Any
    training: bool
    transform_inputs: Any
    eval: Any
    state_dict: Any
    load_state_dict: Any
    # Weights and posterior, after the modules and tensors that they were computed from.
    _process: tuple[list[Any], list[Tensor], Conditioned] | None

    @abstractmethod
    def training_inputs(self) -> Tensor:
        """The training inputs after the input transform, ``... x n x d``."""

    @abstractmethod
    def row_noise(self) -> Tensor:
        """Noise variance of each observation, ``... x n``: σ² or known."""

    @abstractmethod
    def law_shape(self) -> torch.Size:
        """One law for each of these: models of a batch or tasks."""

    @abstractmethod
    def separable(self) -> dict[Index, RCGP] | None:
        """Each model of a batch by its index, in double precision; ``None`` if they cannot be fitted one by one."""

    @abstractmethod
    def write_back(self, index: Index, single: RCGP) -> None:
        """Write the hyperparameters of one model to the batch."""

    @abstractmethod
    def write_laws(self, index: Index, single: RCGP, laws: Sequence[NoiseLaw]) -> None:
        """Write the noise laws of one model to the batch."""

    @abstractmethod
    def named_laws(self, index: Index) -> dict[str, NoiseLaw]:
        """The noise law of each output of one model from :meth:`separable`, by the name of the output in messages."""

    def tasks(self, X: Tensor) -> Tasks | None:
        """The tasks of transformed inputs, if there are several."""
        return None

    def prior_inputs(self, X: Tensor) -> Tensor:
        """What kernel and mean look at, of transformed inputs."""
        return X

    def prior_mean(self) -> Any:
        """The prior mean as a module of these inputs."""
        return self.mean_module

    def learns_inputs(self) -> bool:
        """Whether an input transform is learned with the hyperparameters."""
        transform = getattr(self, "input_transform", None)
        return transform is not None and any(parameter.requires_grad for parameter in transform.parameters())

    def prior_law(self) -> Tensor:
        """The prior noise law, ``... x 6``: shares of the scales and of outliers, and the half-width of the outliers'
        density in robust standard deviations of y − m(x)."""
        counts = self.train_targets.new_tensor(PRIOR_COUNTS)
        law = torch.cat([spread_tail(counts / counts.sum()), counts.new_tensor([OUTLIER_WIDTH])])
        return law.expand(*self.law_shape(), len(law)).clone()

    def law_variance(self) -> Tensor:
        """Variance of the noise of good rows by each law, in units of σ², ``...``."""
        good = self.law[..., : len(SCALES)]
        return (good @ good.new_tensor(SCALES).square()) / good.sum(dim=-1)

    def weighing(self) -> WeightFunction | Tensor:
        """The weight function or the noise laws, for :func:`rcgp.botorch.weighing.weigh`."""
        return self.law if self.weight is None else self.weight

    def __call__(self, X: Tensor, *_: Any, **__: Any) -> MultivariateNormal:
        """The posterior of f at transformed inputs; in training mode the prior, as in GPyTorch."""
        if self.training:
            known = torch.equal(X, self.train_inputs[0])
            return self._prior(self.training_inputs() if known else self.transform_inputs(X))
        X = self.prior_inputs(validation.check_test_inputs(X, self.train_inputs[0]))
        mean, covariance = self._conditioned().process.joint(X)
        return MultivariateNormal(mean, to_linear_operator(covariance))

    def given_data(self) -> tuple[Tensor, ExactPosterior]:
        """Prior mean at the training inputs, ``... x n``, and the posterior relative to it, in double precision."""
        process = self._conditioned().process
        return process.prior_mean(process.support), cast(ExactPosterior, process.given)  # never sparse

    def _conditioned(self) -> Conditioned:
        """Weights and posterior at the current hyperparameters, recomputed if what they depend on has changed."""
        X, y = self.training_inputs(), self.train_targets
        follows = torch.is_grad_enabled() and (X.requires_grad or y.requires_grad)  # a fantasy's data
        with torch.inference_mode(False), torch.set_grad_enabled(follows):
            # Compare values, not version counters: GPyTorch's setters write through .data, which those miss.
            state = (*self.parameters(), *self.buffers())  # type: ignore[attr-defined]
            tensors = [tensor.detach() for tensor in (X, y, self.row_noise(), *state)]
            # Priors choose hyperparameters; of given ones the posterior does not depend on them.
            both = (*self.covar_module.modules(), *self.mean_module.modules())
            parts = [part for part in both if not isinstance(part, gpytorch.priors.Prior)]
            modules = [*parts, *(value for part in parts for value in plain_attributes(part)), self.weight]
            known = self._process
            if known is not None and not follows and same(known[0], modules, known[1], tensors):
                return known[2]
            weighed, mean, kernel = self._weighed(), _frozen(self.prior_mean()), _frozen(self.covar_module)
            process = PosteriorProcess(mean, kernel, weighed.inputs, condition(weighed.K, weighed.pseudo))
            found = Conditioned(weighed, process)
            # A graph can be used only once.
            self._process = None if follows else (modules, [tensor.clone() for tensor in tensors], found)
        return found

    def _weighed(self) -> Weighed:
        """The training data and their weights, in double precision; hyperparameters are constants."""
        kernel, mean = _frozen(self.covar_module), _frozen(self.prior_mean())
        weight = self.law.double() if self.weight is None else _frozen(self.weight)
        X, y = self.training_inputs().double(), self.train_targets.double()
        batch = torch.broadcast_shapes(X.shape[:-2], y.shape[:-1])  # type: ignore[no-untyped-call]
        X = X.expand(*batch, *X.shape[-2:])
        x, tasks = self.prior_inputs(X), self.tasks(X)
        return weigh(x, dense_kernel(kernel, x, x), y - mean(x), self.row_noise().detach().double(), weight, tasks)

    def _prior(self, X: Tensor) -> MultivariateNormal:
        x = self.prior_inputs(X)
        return MultivariateNormal(self.prior_mean()(x), self.covar_module(x))

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
            weighed = self._conditioned().weighed
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
    def doubts(self) -> tuple[str, ...]:
        """Why the noise laws may be wrong, a sentence each: see :func:`rcgp.training.judgement.judge_outputs`.

        Empty if all is well, and if no law is learned: with a weight function, for models that share hyperparameters or
        learn an input transform. Cost O(n³).
        """
        return tuple(name + doubt for name, judged in self.judgements().items() for doubt in judged.doubts)

    def judgements(self) -> dict[str, Judgement]:
        """The judgement of the rows of each output by its noise law, by its name in messages. Cost O(n³)."""
        model = self._without_data().eval() if self.training else self
        singles = model.separable() if self.weight is None else None
        found: dict[str, Judgement] = {}
        cavity = model._weighed_rows().cavity
        for index, single in (singles or {}).items():
            laws = model.named_laws(index)
            if cavity is not None and not all(law.is_normal for law in laws.values()):
                own = LeaveOneOut(*(part[index] for part in cavity))
                single.weight = single.weight_by_law(tuple(laws.values()), own, torch.ones_like(own.mean))
            found |= dict(zip(laws, judge_outputs(single, learn=False), strict=True))
        return found

    def _weighed_rows(self) -> Weighed:
        with torch.no_grad():
            return self._conditioned().weighed

    def _for_users(self, values: Tensor) -> Tensor:
        """Values of rows, ``... x n``, in the shape of the observations, ``... x n x 1``."""
        return values.to(self.train_targets, copy=True).unsqueeze(-1)

    def custom_fit(
        self, mll: gpytorch.mlls.MarginalLogLikelihood, **kwargs: Any
    ) -> gpytorch.mlls.MarginalLogLikelihood:
        """Called by ``fit_gpytorch_mll``: see :func:`rcgp.botorch.fitting.fit_for_botorch`."""
        from rcgp.botorch.fitting import fit_for_botorch

        return fit_for_botorch(self, mll, **kwargs)

    def _load_state(self, state_dict: dict[str, Any], prefix: str, kernel: Any, at: str) -> None:
        """Prepare a state for loading, also that of BoTorch's own model, without noise law and output scale.

        Args:
            state_dict: the state, changed in place.
            prefix: of the names of this model's parts.
            kernel: the kernel of the inputs.
            at: the prefix of its parts.
        """
        if self.weight is None:
            state_dict.setdefault(f"{prefix}law", self.law)
        if isinstance(kernel, gpytorch.kernels.ScaleKernel) and f"{at}raw_lengthscale" in state_dict:
            for key in [key for key in state_dict if key.startswith(at)]:
                state_dict[f"{at}base_kernel.{key[len(at) :]}"] = state_dict.pop(key)
            one = torch.ones_like(kernel.raw_outputscale)
            state_dict[f"{at}raw_outputscale"] = kernel.raw_outputscale_constraint.inverse_transform(one)
            for key, value in kernel.state_dict().items():  # the prior of the output scale
                state_dict.setdefault(at + key, value)

    def __getstate__(self) -> dict[str, Any]:
        # The posterior is neither pickled nor copied: it can be recomputed.
        return {**self.__dict__, "_process": None}


def _frozen(module: Any) -> Any:
    """A copy in double precision whose parameters are constants."""
    return None if module is None else copy.deepcopy(module).double().requires_grad_(False)


def noise_laws(shares: Tensor, widths: Tensor) -> list[NoiseLaw]:
    """Noise laws of ``k x 5`` shares and ``k`` half-widths."""
    return [
        NoiseLaw.normal() if row[0] == 1.0 else NoiseLaw(tuple(row[:-1]), row[-1], width)
        for row, width in zip(shares.double().tolist(), widths.tolist(), strict=True)
    ]


def law_numbers(law: NoiseLaw, spread: float) -> list[float]:
    """A law as the six numbers of a state, given the robust spread of the residuals."""
    return [*law.shares, law.outlier_share, OUTLIER_WIDTH if law.is_normal else law.width / spread]


def take_noise(single: RCGP, likelihood: Any, noise: Tensor, of_prior: Callable[[RCGP], Tensor]) -> None:
    """Give a model the noise variance of a likelihood, with its bound and its prior.

    Args:
        single: the model.
        likelihood: with a learned noise.
        noise: its values for the model.
        of_prior: what the prior is about, given the model.
    """
    own = likelihood.noise_covar
    single.register_constraint("raw_noise", Between(float(own.raw_noise_constraint.lower_bound), torch.inf))
    single.noise = above_bound(single.raw_noise_constraint, noise)
    single.raw_noise.requires_grad_(own.raw_noise.requires_grad)
    for name, _, prior, _, _ in own.named_priors():
        single.register_prior(name, copy.deepcopy(prior).double(), of_prior, None)


def above_bound(constraint: Interval, value: Tensor) -> Tensor:
    """The value, at least slightly above the lower bound."""
    return value.clamp_min(float(constraint.lower_bound) * (1.0 + _MARGIN))
