"""The command line: a table in, a robust fit, predictions, suspicious rows or a report out.

``app``       the commands, and :func:`run`: arguments in, an exit code out; ``rcgp --help`` is the manual.
``options``   options that several commands share.
``fitting``   from files to a fitted model or to predictions, with progress.
``results``   what the commands print and write.
``optimise``  optimisation of the user's program.
``demo``      a plain and a robust GP on made-up data with outliers.
"""

from rcgp.cli.app import run

__all__ = ["run"]
