"""A table with bad values in it
================================

The estimator on a data frame: which rows are outliers, what the model expects there, and how wide the intervals of good
rows are.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from rcgp import RCGPRegressor

random = np.random.default_rng(0)
houses = pd.DataFrame({"size": random.uniform(50, 200, 120), "age": random.uniform(0, 80, 120)})
price = 3.0 * houses["size"] - 1.5 * houses["age"] + 8.0 * random.standard_normal(120)
price[[3, 40, 77]] = [9.0, 900.0, 1.0]  # a digit too few, one too many, and a default

model = RCGPRegressor(mean="robust_linear").fit(houses, price)
found = houses.assign(price=price, expected=model.loo_mean_, probability=model.outlier_probability_)[model.outliers_]
print(found.round(2).to_string())

# %%
# The scores, residuals from what all other rows predict in standard deviations, against the prediction and against the
# weights. The three bad values stand apart in both. The fourth flagged row is a good one, with a probability just above
# one half.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for axis, horizontal, label in ((left, model.loo_mean_, "expected price"), (right, model.weights_, "weight")):
    axis.scatter(
        horizontal, model.outlier_scores_, s=12, color=np.where(model.outliers_, "#d62728", "#377eb8"), linewidths=0
    )
    axis.set(xlabel=label, ylabel="score, standard deviations")
plt.show()

# %%
# Outliers do not widen the intervals: the noise is that of the good rows, as in a fit without the flagged ones.

print(model.noise_law_)
clean = RCGPRegressor(mean="robust_linear").fit(houses[~model.outliers_], price[~model.outliers_])
for name, fitted in (("all rows", model), ("without the flagged ones", clean)):
    lower, upper = fitted.predict_interval(houses)
    noise = np.median(fitted.noise_std(houses))
    print(f"{name:25} noise {noise:.2f} (the truth: 8), 95 % intervals {(upper - lower).mean():.1f} wide")
