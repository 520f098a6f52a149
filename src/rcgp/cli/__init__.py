"""The command line: from a table to a robust fit, predictions, suspicious rows or a report.

``app``       the commands, and :func:`run`, from arguments to an exit code; ``rcgp --help`` is the manual.
``options``   options that several commands share.
``fitting``   from files to a fitted model or to predictions, with progress.
``results``   output of the commands, printed and written.
``series``    values over time: fit, summary, forecast; ``follow`` judges new values as they arrive.
``optimise``  optimisation of the user's program.
``demo``      a plain and a robust GP on made-up data with outliers.
"""

from rcgp.cli.app import run

__all__ = ["run"]
