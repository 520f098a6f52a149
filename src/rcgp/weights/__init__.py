"""Weight functions: the weight of an observation, given its distance from the prior mean.

This is the public vocabulary of the method, and the lowest layer: torch only.
A weight function has two values for each observation,

    w̃(x, y)              the weight, normalised so that w̃ = 1 counts in full  (w̃ = w √2 / σ),
    ∂_y log w̃(x, y)²     its slope, which corrects the bias of down-weighting,

both as functions of the residual e = y − m(x), the input x and the noise variance σ².
Everything downstream sees only the pseudo-data made from them (:mod:`rcgp.core.pseudo`).

A subclass must define ``forward`` only; by default the slope comes from autograd::

    class Triweight(WeightFunction):
        def forward(self, residual, inputs, noise):
            return (1 - (residual / 3).clamp(-1, 1) ** 2) ** 1.5
"""

from rcgp.weights.composed import ByOutput, NoNoiseTerm, NoShrinkage, OneSided, Product
from rcgp.weights.functions import (
    Constant,
    Heteroskedastic,
    InverseMultiquadric,
    SquaredExponential,
    ThresholdWeight,
    WeightFunction,
    quantile_threshold,
    smallest_weight,
)
from rcgp.weights.noise_law import LawWeight, NoiseLaw

__all__ = [
    "ByOutput",
    "Constant",
    "Heteroskedastic",
    "InverseMultiquadric",
    "LawWeight",
    "NoNoiseTerm",
    "NoShrinkage",
    "NoiseLaw",
    "OneSided",
    "Product",
    "SquaredExponential",
    "ThresholdWeight",
    "WeightFunction",
    "quantile_threshold",
    "smallest_weight",
]
