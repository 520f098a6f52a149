"""Fits of rows in chunks: hyperparameters and noise law from a sample, then a few passes over all rows."""

from rcgp.chunked.fit import ChunkedFit, fit_chunks

__all__ = ["ChunkedFit", "fit_chunks"]
