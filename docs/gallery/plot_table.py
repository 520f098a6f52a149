"""A table with bad values in it
================================

The estimator on a data frame: which rows do not fit in, what the model expected there, and what is left of the error
bars once they are gone.
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
found = houses.assign(price=price, expected=model.loo_mean_, weight=model.weights_)[model.outliers_]
print(found.round(2).to_string())

# %%
# The scores, residuals from what all other rows predict in robust standard deviations, against the prediction and
# against the weights. The three bad values stand apart in both.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for axis, horizontal, label in ((left, model.loo_mean_, "expected price"), (right, model.weights_, "weight")):
    axis.scatter(
        horizontal, model.outlier_scores_, s=12, color=np.where(model.outliers_, "#d62728", "#377eb8"), linewidths=0
    )
    axis.set(xlabel=label, ylabel="score, robust standard deviations")
plt.show()

# %%
# The outliers have inflated the fitted noise. Without the flagged rows the error bars are those of the good ones.

clean = RCGPRegressor(mean="robust_linear").fit(houses[~model.outliers_], price[~model.outliers_])
for name, fitted in (("all rows", model), ("without the flagged ones", clean)):
    print(f"{name:25} noise standard deviation {fitted.noise_variance_**0.5:6.2f} (the truth: 8)")
