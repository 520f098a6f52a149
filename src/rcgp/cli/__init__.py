"""The command line: a table in, a robust fit, predictions, suspicious rows or a report out.

``program``   arguments in, an exit code out.
``app``       the commands; ``rcgp --help`` is their manual.
``options``   what several commands can be told.
``fitting``   from a file to a fitted model, with progress.
``printing``  what the commands show.
``predicting`` from a saved model and a file to predictions.
``optimise``  a program of the user's, optimised although some of its answers are wrong.
``reproduce`` the paper's tables and figures.
``demo``      a plain and a robust GP on made-up data with outliers.
"""

from rcgp.cli.program import run

__all__ = ["run"]
