"""Fits of rows that are read in chunks: more than memory holds, on one machine or many.

``fit_chunks`` chooses hyperparameters and noise law on a sample, then weighs and sums up all rows in a few passes.
"""

from rcgp.chunked.fit import ChunkedFit, fit_chunks

__all__ = ["ChunkedFit", "fit_chunks"]
