"""The training data of a BoTorch model: stored, transformed, replaced, extended, restricted to some outputs.

It replaces GPyTorch's ``ExactGP``, the base of ``SingleTaskGP``, except for predictions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Self

import gpytorch
import torch
from botorch.models.gpytorch import BatchedMultiOutputGPyTorchModel
from botorch.models.model import FantasizeMixin
from botorch.models.utils.assorted import fantasize
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from torch import Tensor, nn

from rcgp.botorch.validation import check_observations, check_outputs

__all__ = ["Index", "TrainingData", "TrainingDataModel", "is_batched", "sliced", "write_slice"]

#: Models of a batch: a number, a list of numbers or a slice for each batch dimension.
Index = tuple[Any, ...]


class TrainingData:
    """Training data that a model keeps, replaces and extends: a mixin for one of BoTorch's models.

    Attributes:
        train_inputs: one tensor, ``... x n x d``; transformed in evaluation mode.
        train_targets: ``... x n`` observations after the outcome transform.
    """

    train_inputs: tuple[Tensor, ...]
    train_targets: Tensor
    likelihood: Any
    _original_train_inputs: Tensor | None

    def set_train_data(
        self, inputs: Tensor | tuple[Tensor, ...] | None = None, targets: Tensor | None = None, strict: bool = True
    ) -> None:
        """Replace inputs, targets or both, after transforms.

        Raises:
            RuntimeError: if shapes change, unless ``strict=False``.
        """
        X = inputs[0] if isinstance(inputs, tuple) else inputs
        for name, old, new in (("inputs", self.train_inputs[0], X), ("targets", self.train_targets, targets)):
            if strict and new is not None and old.shape != new.shape:
                raise RuntimeError(
                    f"cannot replace {name} of shape {tuple(old.shape)} by {tuple(new.shape)}; strict=False can"
                )
        if X is not None:
            self.train_inputs = (X,)
        if targets is not None:
            self.train_targets = targets

    def get_fantasy_model(self, inputs: Tensor, targets: Tensor, **kwargs: Any) -> Self:
        """This model with further data and the same hyperparameters.

        Args:
            inputs: ``... x n' x d`` transformed inputs.
            targets: ``... x n'`` transformed observations, with as many batch dimensions or more.
            kwargs: ``noise``, their variances, if the training data have known ones.
        """
        X, y = self.train_inputs[0], self.train_targets
        shapes = (X.shape[:-2], y.shape[:-1], inputs.shape[:-2], targets.shape[:-1])
        batch = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
        model = self._without_data()
        model.likelihood = self.likelihood.get_fantasy_likelihood(**kwargs)
        model.train_inputs = (torch.cat([part.expand(*batch, *part.shape[-2:]) for part in (X, inputs)], dim=-2),)
        model.train_targets = torch.cat([part.expand(*batch, part.shape[-1]) for part in (y, targets)], dim=-1)
        return model

    def _without_data(self) -> Self:
        """A copy that shares the training data, which cannot be copied if they are part of a graph."""
        shared = {id(tensor): tensor for tensor in (*self.train_inputs, self.train_targets)}
        return copy.deepcopy(self, shared)

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> Self:
        # Training data follow the model to a type or device. They are not buffers, which are part of the state.
        self.train_inputs = tuple(fn(inputs) for inputs in self.train_inputs)
        self.train_targets = fn(self.train_targets)
        if self._original_train_inputs is not None:
            self._original_train_inputs = fn(self._original_train_inputs)
        model: Self = super()._apply(fn, *args, **kwargs)  # type: ignore[misc]
        return model


class TrainingDataModel(TrainingData, BatchedMultiOutputGPyTorchModel, gpytorch.models.GP, FantasizeMixin):  # type: ignore[misc]
    """A batch of models with training data; subclasses predict.

    Several outputs are the last batch dimension.
    """

    _has_transformed_inputs: bool

    def training_inputs(self) -> Tensor:
        """The training inputs after the input transform, ``... x n x d``."""
        if not self.training or not hasattr(self, "input_transform"):
            return self.train_inputs[0]
        return self._for_each_output(self.transform_inputs)

    def _for_each_output(self, transform: Callable[[Tensor], Tensor]) -> Tensor:
        """The training inputs, transformed before they are repeated for each output.

        A transform with a batch shape would confuse it with the outputs, BoTorch's last batch dimension.
        """
        X = self.train_inputs[0]
        if self.num_outputs == 1:
            return transform(X)
        once = transform(X[..., 0, :, :])
        return once.unsqueeze(-3).expand(*once.shape[:-2], self.num_outputs, *once.shape[-2:])

    def _set_transformed_inputs(self) -> None:
        if hasattr(self, "input_transform") and not self._has_transformed_inputs:
            self._original_train_inputs = self.train_inputs[0]
            with torch.no_grad():
                transformed = self._for_each_output(self.input_transform.preprocess_transform)
            self.set_train_data(transformed, strict=False)
            self._has_transformed_inputs = True

    def row_noise(self) -> Tensor:
        """Noise variance of each observation, ``... x n``: σ² or known."""
        noise: Tensor = self.likelihood.noise  # ... x 1, or ... x n
        shape = torch.broadcast_shapes(noise.shape, self.train_targets.shape)  # type: ignore[no-untyped-call]
        return noise.expand(shape)

    def condition_on_observations(self, X: Tensor, Y: Tensor, **kwargs: Any) -> Self:
        """The model of all the data with the same hyperparameters and transforms.

        Args:
            X, Y: new inputs and observations, ``... x n' x d`` and ``... x n' x m``; Y may have further batch
                dimensions, one model each.
            kwargs: ``noise``, ``... x n' x m`` variances after transforms, if the data have known ones.
        """
        check_observations(X, Y, self, self.num_outputs)
        if Y.ndim > X.ndim and fantasize.off():
            X = X.expand(*Y.shape[:-2], *X.shape[-2:])
        # In training mode the transforms would learn from the new data.
        model: Self = super(TrainingDataModel, self.eval()).condition_on_observations(X, Y, **kwargs)
        return model

    def subset_output(self, idcs: list[int]) -> Self:
        """The model of some of the outputs, in their order."""
        check_outputs(idcs, self.num_outputs, "idcs")
        outputs = [index % self.num_outputs for index in idcs]
        if outputs == list(range(self.num_outputs)):
            return self._without_data()
        before = self._aug_batch_shape
        rows: Any = outputs if len(outputs) > 1 else outputs[0]
        index = (*(slice(None) for _ in before[:-1]), rows)
        model = self._without_data()
        for name in ("covar_module", "mean_module", "likelihood"):
            setattr(model, name, sliced(getattr(self, name), before, index))
        if hasattr(self, "law"):
            model.law = self.law[index].clone()
        if isinstance(self.likelihood, FixedNoiseGaussianLikelihood):  # neither parameter nor buffer
            model.likelihood.noise_covar.noise = self.likelihood.noise[(*index, slice(None))]
        model.train_inputs = tuple(inputs[(*index, slice(None), slice(None))] for inputs in self.train_inputs)
        model.train_targets = self.train_targets[(*index, slice(None))]
        model._num_outputs, model._aug_batch_shape = len(outputs), torch.empty(before)[index].shape
        if self._original_train_inputs is not None:
            model._original_train_inputs = self._original_train_inputs[(*index, slice(None), slice(None))]
        if hasattr(self, "outcome_transform"):
            model.outcome_transform = self.outcome_transform.subset_output(idcs=outputs)
        return model


def is_batched(module: nn.Module, batch_shape: torch.Size) -> bool:
    """Whether every parameter of a module has an entry for each model of the batch."""
    return all(_has_batch(parameter, batch_shape) for parameter in module.parameters())


def sliced(module: Any, batch_shape: torch.Size, index: Index) -> Any:
    """A copy of a module for some models of the batch; shared parameters are copied unchanged."""
    clone = copy.deepcopy(module)
    if not batch_shape or not is_batched(clone, batch_shape):
        return clone
    kept = torch.empty(batch_shape)[index].shape
    for part in clone.modules():
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and _has_batch(tensor, batch_shape):
                    values = tensor.detach()[index].clone()
                    is_parameter = isinstance(tensor, nn.Parameter)
                    tensors[name] = nn.Parameter(values, tensor.requires_grad) if is_parameter else values
        if getattr(part, "batch_shape", None) == batch_shape:
            part.batch_shape = kept
    return clone


def write_slice(module: nn.Module, index: Index, values: nn.Module) -> None:
    """Write the parameters of one model's module, made by :func:`sliced`, back to the batch."""
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), values.parameters(), strict=True):
            parameter[index].copy_(value)


def _has_batch(tensor: Tensor, batch_shape: torch.Size) -> bool:
    return tensor.shape[: len(batch_shape)] == batch_shape
