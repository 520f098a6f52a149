"""A table of houses with one outlier, in its twelfth row, and how tests run commands on it."""

from __future__ import annotations

import io
import re

import numpy as np
import pandas as pd

from rcgp.cli import run


def house_table(n=40):
    random = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "size": random.uniform(50, 200, n).round(1),
            "sold": pd.date_range("2024-01-01", periods=n, freq="3D").strftime("%Y-%m-%d"),
            "colour": random.choice(["red", "blue", "green"], n),
        }
    )
    premium = 40.0 * (table["colour"] == "red")
    table["price"] = (3.0 * table["size"] + premium + 5.0 * random.standard_normal(n)).round(2)
    table.loc[11, "price"] += 900.0
    return table


class ClosedPipe(io.StringIO):
    """Standard output whose reader has gone."""

    def write(self, _):
        raise BrokenPipeError


def rcgp_command(*arguments):
    return run([str(argument) for argument in arguments])


def assert_one_sentence(capsys, message):
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("rcgp: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert re.search(message, err), err
