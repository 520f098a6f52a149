"""Ax among outliers
=================

An Ax experiment needs one more line to be robust: a generation strategy with the robust model. Branin's function, one
evaluation in five shifted upwards by 300 to 500, 20 random evaluations and 10 that Ax suggests.
:doc:`/optimisation` says more.
"""

from __future__ import annotations

import logging
import warnings

import matplotlib.pyplot as plt
import numpy as np
import torch
from ax.api.client import Client
from ax.api.configs import RangeParameterConfig
from ax.utils.common.logger import set_stderr_log_level
from botorch.test_functions import Branin

import rcgp.botorch.ax as robust_ax

set_stderr_log_level(logging.ERROR)
warnings.filterwarnings("ignore", category=DeprecationWarning)  # what Ax does to pandas

branin = Branin()


def evaluate(parameters: dict[str, float]) -> float:
    """The function itself, without outliers."""
    return float(branin(torch.tensor([parameters["x"], parameters["y"]], dtype=torch.float64)))


client = Client(random_seed=0)
client.configure_experiment(
    parameters=[
        RangeParameterConfig(name="x", bounds=(-5.0, 10.0), parameter_type="float"),
        RangeParameterConfig(name="y", bounds=(0.0, 15.0), parameter_type="float"),
    ]
)
client.configure_optimization(objective="-loss")
client.set_generation_strategy(robust_ax.generation_strategy())  # the line

# %%
# Evaluations are attached as in any Ax script.

rng = np.random.default_rng(0)
points, shifted = [], []
for step in range(30):
    if step < 20:
        parameters = {"x": rng.uniform(-5.0, 10.0), "y": rng.uniform(0.0, 15.0)}
        trial = client.attach_trial(parameters)
    else:
        ((trial, suggested),) = client.get_next_trials(max_trials=1).items()
        parameters = {name: float(number) for name, number in suggested.items() if not isinstance(number, str | None)}
    shift = rng.uniform(300.0, 500.0) * (step % 5 == 2)
    client.complete_trial(trial, raw_data={"loss": evaluate(parameters) + shift})
    points.append([parameters["x"], parameters["y"]])
    shifted.append(shift > 0)
best, prediction, _, _ = client.get_best_parameterization()

# %%
# Probability that each evaluation is an outlier, the last one included.

probability = robust_ax.outlier_probability(client)
print(probability.assign(outlier=shifted))
flagged = np.array(points)[probability["loss"] > 0.5]

# %%
# The function, its evaluations, outliers in red, flagged ones in a circle, and what Ax calls the best arm.

x, y = np.meshgrid(np.linspace(-5.0, 10.0, 80), np.linspace(0.0, 15.0, 80))
surface = branin(torch.from_numpy(np.stack([x, y], axis=-1))).numpy()
figure, axis = plt.subplots(figsize=(6, 5), layout="constrained")
axis.contourf(x, y, np.log(surface), levels=20, cmap="Greys_r")
for wrong, colour, label in ((False, "#6a1b9a", "evaluations"), (True, "#e41a1c", "outliers")):
    where = np.array(points)[np.array(shifted) == wrong]
    axis.scatter(where[:, 0], where[:, 1], color=colour, s=25, label=label)
axis.scatter(flagged[:, 0], flagged[:, 1], facecolor="none", edgecolor="black", s=120, label="flagged")
axis.scatter(best["x"], best["y"], marker="*", s=220, color="gold", edgecolor="black", label="best arm")
axis.set(xlabel="x", ylabel="y")
axis.legend(loc="upper right")
plt.show()
