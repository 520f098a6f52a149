"""The mathematics: pure functions and frozen dataclasses on torch tensors, with leading batch dimensions.

Nothing here knows GPyTorch, modules or hyperparameters. Read :mod:`rcgp.core.pseudo` first: it turns weights
into pseudo-data, and everything else is ordinary Gaussian process regression on those.
"""
