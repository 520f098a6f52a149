"""A fitted model and its table as one HTML page that works offline: figures, numbers and suspicious rows."""

try:
    import pandas as _pandas  # noqa: F401
    import plotly as _plotly  # noqa: F401
except ImportError as error:
    raise ImportError(f'rcgp.report needs pandas and plotly ({error}): pip install "rcgp[report]"') from error

from rcgp.report.page import report_html, write_report

__all__ = ["report_html", "write_report"]
