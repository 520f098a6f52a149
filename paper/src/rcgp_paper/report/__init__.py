"""Tables, figures and a page of the paper's experiments, from their records."""

from rcgp_paper.report.reproduction import render, write_page

__all__ = ["render", "write_page"]
