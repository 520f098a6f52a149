"""Reproduction and judgement: the paper's experiments, and the methods that rcgp is compared with.

``data``         data sets, contaminations and splits; independent of models.
``baselines``    ordinary, Student-t, mixture and winsorized GP, and BoTorch's relevance pursuit.
``experiments``  one file for each kind of table or figure: configurations in, records out.
``report``       records in, tables, figures and a page out.
``command``      ``rcgp reproduce``.

This package uses rcgp, never the other way round.
"""
