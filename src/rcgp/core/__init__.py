"""The mathematics: pure functions and frozen dataclasses on torch tensors, with leading batch dimensions.

Nothing here knows GPyTorch, modules or hyperparameters. Read :mod:`rcgp.core.pseudo` first: it turns weights
into pseudo-data. Everything else is ordinary Gaussian process regression on them: with n x n matrices in
:mod:`rcgp.core.exact`, through inducing points in :mod:`rcgp.core.sparse`.
"""
