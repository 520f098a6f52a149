"""The command line: a table in, a robust fit, predictions, suspicious rows or a report out.

``app``       the commands and their options; ``rcgp --help`` is their manual.
``fitting``   from a file to a fitted model, with progress.
``printing``  what the commands show.
``demo``      a plain and a robust GP on made-up data with outliers.
"""

from rcgp.cli.app import run

__all__ = ["run"]
