"""The command line: a table in, a robust fit, predictions, suspicious rows or a report out.

``program``   arguments in, an exit code out.
``app``       the commands; ``rcgp --help`` is their manual.
``options``   what several commands can be told.
``fitting``   from a file to a fitted model, with progress.
``printing``  what the commands show.
``predicting`` the tables that commands write: predictions, and a table with its outliers marked.
``optimise``  a program of the user's, optimised although some of its answers are wrong.
``demo``      a plain and a robust GP on made-up data with outliers.
"""

from rcgp.cli.program import run

__all__ = ["run"]
