"""Tables as HTML: the most suspicious rows, the noise law, the models side by side, and how they were fitted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from rcgp.report.summary import Numbers, Regressor, Rows, Scores, listed_rows
from rcgp.report.text import for_html, number, percent
from rcgp.weights import NoiseLaw

__all__ = ["MOST_COLUMNS", "fit_table", "law_table", "row_table", "score_table"]

_PROBABILITY = "outlier probability"

#: Features shown beside each listed row: a table of hundreds of columns is for the file, not for a page.
MOST_COLUMNS = 40


def row_table(rows: Rows, X: pd.DataFrame) -> str:
    """The most suspicious rows first, with their features; the script of the page makes it sortable."""
    listed = listed_rows(rows)
    features = X.iloc[listed, :MOST_COLUMNS]
    columns: list[tuple[str, Numbers]] = [
        ("observed", rows.observed[listed]),
        ("expected", rows.expected[listed]),
        ("residual", rows.residual[listed]),
        ("score", rows.score[listed]),
        ("weight", rows.weight[listed]),
        (_PROBABILITY, rows.probability[listed]),
    ]
    inputs = [(str(name), features[name].to_numpy(dtype=np.float64)) for name in features.columns]
    heads = ["row", *(name for name, _ in columns), "flagged", *(name for name, _ in inputs)]
    head = "".join(_sortable_head(name, i, sorted_by=name == _PROBABILITY) for i, name in enumerate(heads))
    body = []
    for place, i in enumerate(listed):
        cells = [_label_cell(rows.label[i])]
        # Deviations are sorted by their size: those in either direction are suspicious.
        cells += [_number_cell(v[place], abs(v[place]) if name == "score" else v[place]) for name, v in columns]
        cells.append(f"<td>{'yes' if rows.flagged[i] else 'no'}</td>")
        cells += [_number_cell(values[place], values[place]) for _, values in inputs]
        kind = ' class="flagged"' if rows.flagged[i] else ""
        body.append(f"<tr{kind}>{''.join(cells)}</tr>")
    return f'<table class="sortable"><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'


def law_table(law: NoiseLaw) -> str:
    """Share of the rows with normal noise, of the tail, and of outliers."""
    return _plain_table(["noise", "share of rows"], [(name, [percent(share)]) for name, share in law.components()])


def score_table(robust: Scores, plain: Scores | None) -> str:
    """Scores of the robust GP and, if there is one, of the ordinary GP beside it."""
    both = [robust] if plain is None else [robust, plain]
    lines = [
        ("mean absolute error", [number(s.mean_error) for s in both]),
        ("… without flagged rows", [number(s.mean_error_kept) for s in both]),
        ("median absolute error", [number(s.median_error) for s in both]),
        ("coverage of 95 % intervals", [percent(s.coverage) for s in both]),
        ("… without flagged rows", [percent(s.coverage_kept) for s in both]),
        ("noise, standard deviation", [number(s.noise_std) for s in both]),
    ]
    return _plain_table(["", "robust GP", "ordinary GP"][: len(both) + 1], lines)


def fit_table(robust: Regressor, plain: Regressor | None, features: Sequence[str]) -> str:
    """Objective, outcome and lengthscales of each fit."""
    both = [robust] if plain is None else [robust, plain]
    reports = [getattr(model, "fit_report_", None) for model in both]
    known = [report for report in reports if report is not None]
    lines = []
    if len(known) == len(both):
        lines = [
            ("objective", [f"{report.objective} = {number(float(report.value))}" for report in known]),
            ("converged", ["yes" if report.converged else "no" for report in known]),
            ("message of the optimiser", [str(report.message) for report in known]),
            ("time", [f"{report.seconds:.2f} s" for report in known]),
            *_round_lines(known),
        ]
    for i, name in enumerate(features[:MOST_COLUMNS]):
        lines.append((f"lengthscale of {name}", [_lengthscales(model, i) for model in both]))
    return _plain_table(["", "robust GP", "ordinary GP"][: len(both) + 1], lines)


def _round_lines(reports: Sequence[Any]) -> list[tuple[str, list[str]]]:
    """What each expectation step of a robust fit kept and gained; nothing for other fits."""
    lines = []
    for i in range(max(len(getattr(report, "rounds", ())) for report in reports)):
        cells = []
        for report in reports:
            rounds = getattr(report, "rounds", ())
            cells.append(
                f"{rounds[i].name}: {number(rounds[i].kept)} rows kept, log evidence {number(rounds[i].evidence)}"
                if i < len(rounds)
                else "–"
            )
        lines.append((f"step {i + 1}", cells))
    return lines


def _lengthscales(model: Regressor, feature: int) -> str:
    """The lengthscale of a feature, or several where a kernel is made of several."""
    parts = np.atleast_2d(np.asarray(model.lengthscales_, dtype=np.float64))
    return ", ".join("∞" if np.isinf(part[feature]) else number(float(part[feature])) for part in parts) or "–"


def _plain_table(heads: Sequence[str], lines: Iterable[tuple[str, list[str]]]) -> str:
    head = "".join(f'<th scope="col">{for_html(name)}</th>' if name else "<td></td>" for name in heads)
    body = "".join(
        f'<tr><th scope="row">{for_html(name)}</th>{"".join(f"<td>{for_html(cell)}</td>" for cell in cells)}</tr>'
        for name, cells in lines
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _sortable_head(name: str, column: int, sorted_by: bool) -> str:
    # A button, so that the keyboard reaches it and a screen reader says that it can be pressed.
    order = "descending" if sorted_by else "none"
    return (
        f'<th scope="col" aria-sort="{order}">'
        f'<button type="button" data-column="{column}">{for_html(name)}</button></th>'
    )


def _number_cell(value: float, sorted_as: float) -> str:
    """A cell that shows four digits and sorts by all of them."""
    return f'<td class="number" data-value="{float(sorted_as)!r}">{number(float(value))}</td>'


def _label_cell(label: object) -> str:
    """The name of a row: sorted as a number if it is one."""
    if isinstance(label, int | float | np.number) and not isinstance(label, bool):
        return f'<td class="number" data-value="{float(label)!r}">{for_html(label)}</td>'
    return f"<td>{for_html(label)}</td>"
