"""A fitted model and its table as one page to look at: figures, numbers and the rows that do not fit.

The page is a single file that needs no network and asks for none. Pandas and Plotly are wanted in this room only.
"""

try:
    import pandas as _pandas  # noqa: F401
    import plotly as _plotly  # noqa: F401
except ImportError as error:
    raise ImportError(f'rcgp.report needs pandas and plotly ({error}): pip install "rcgp[report]"') from error

from rcgp.report.page import report_html, write_report

__all__ = ["report_html", "write_report"]
