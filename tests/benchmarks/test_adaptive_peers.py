"""The benchmark against other robust GPs: that cells compare what both have, and that a run can be gone on with."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from rcgp.data import prepare


@pytest.fixture(scope="module")
def peers(script):
    return script("adaptive_peers")


def test_a_cell_is_the_mean_over_the_splits_that_both_have(peers):
    def record(index, method, mae, seconds, contamination="clean"):
        return peers.Record("yacht", contamination, index, method, mae, seconds)

    text = peers.comparison(
        [
            record(0, "adaptive", 0.1, 1.0),
            record(1, "adaptive", 0.3, 1.0),
            record(2, "adaptive", 9.0, 9.0),
            record(0, "t-gp", 0.1, 4.0),
            record(1, "t-gp", 0.2, 2.0),
            record(3, "t-gp", 7.0, 70.0),
            record(0, "adaptive", 0.1, 1.0, "uniform"),
            record(0, "t-gp", 0.1, 20.0, "uniform"),
            record(0, "adaptive", 0.1, 1.0, "focused"),
        ],
        ["adaptive", "t-gp", "rrp"],
    )
    lines = {
        line.split("|")[1].strip(): [part.strip() for part in line.split("|")[2:-1]]
        for line in text.split("\n")[:6]
        if "|" in line
    }
    assert lines["yacht clean"] == ["2", "0.2000, 0.1500", "3.0", "–", "–", "–"]
    assert lines["yacht uniform"] == ["1", "0.1000, 0.1000", "20.0", "–", "–", "–"]
    assert lines["yacht focused"] == ["–"] * 6
    assert "- t-gp: errors of adaptive RCGP equal or smaller in 1 of 2 cells" in text
    assert "3.0 to 20.0 (aim: 10)" in text
    assert "- rrp: not measured" in text


def test_what_the_file_has_is_not_measured_again(peers, monkeypatch, tmp_path, capsys):
    path, asked = tmp_path / "records.jsonl", []

    def measure(*key):
        asked.append(key)
        if key == ("synthetic", "uniform", 1, "gp"):
            raise KeyboardInterrupt
        return peers.Record(*key, 0.1, 1.0)

    monkeypatch.setattr(peers, "measure", measure)
    monkeypatch.setattr(peers, "threadpool_limits", lambda count: None)
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)
    options = {"--data": ["synthetic"], "--contamination": ["clean", "uniform"], "--methods": ["adaptive", "gp"]}
    given = [part for option, values in options.items() for part in (option, *values)]
    monkeypatch.setattr(sys, "argv", ["adaptive_peers.py", *given, "--splits", "2", "--records", str(path)])
    peers.main()
    assert "interrupted" in capsys.readouterr().out
    assert len(path.read_text().splitlines()) == 7
    with path.open("a") as file:
        file.write('{"data": "syn')  # the process was killed
    monkeypatch.setattr(peers, "measure", lambda *key: peers.Record(*key, 0.1, 1.0))
    peers.main()
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(records) == 8
    assert records[-1]["method"] == "gp"
    assert "in 2 of 2 cells" in capsys.readouterr().out


def test_the_t_gp_of_gpytorch_learns_a_curve_with_outliers(peers, monkeypatch):
    """A few iterations of what runs for minutes: far better than the median, which is all it could do without."""
    monkeypatch.setattr(peers, "MOST", 150)
    problem = prepare("synthetic", "uniform", "paper", 0)
    record = peers.measure("synthetic", "uniform", 0, "gpytorch-t-gp")
    assert record.mae < 0.3 * float(np.abs(problem.test_y - np.median(problem.train_y)).mean())
    assert record.seconds > 0
