"""``rcgp reproduce`` as its users meet it."""

from __future__ import annotations

import pytest

from rcgp.cli import run
from rcgp.experiments import EXPERIMENTS


def test_the_list_names_every_experiment(capsys):
    assert run(["reproduce", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(EXPERIMENTS)


def test_an_experiment_is_run_once_and_rendered_again(tmp_path, capsys):
    command = ["reproduce", "figure_weights", "--jobs", "1", "--output", str(tmp_path / "out")]
    assert run(command) == 0
    assert "figure_weights.png" in capsys.readouterr().err
    records = (tmp_path / "out" / "figure_weights.jsonl").read_bytes()
    (tmp_path / "out" / "figure_weights.png").unlink()
    assert run(command) == 0
    assert (tmp_path / "out" / "figure_weights.jsonl").read_bytes() == records
    assert (tmp_path / "out" / "figure_weights.png").exists()
    assert run(["reproduce", "report", "--output", str(tmp_path / "out")]) == 0
    assert "Figure 3" in (tmp_path / "out" / "reproduction.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["figure_9"], "there is no experiment 'figure_9': 'rcgp reproduce --list' shows all"),
        (["report"], "there are no records in"),
        (["table1", "--splits", "0"], "Invalid value for '--splits'"),
        (["table1", "--protocol", "mine"], "'mine' is not one of"),
    ],
)
def test_what_cannot_be_reproduced_is_one_sentence(arguments, message, tmp_path, capsys):
    assert run(["reproduce", *arguments, "--output", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_data_that_are_missing_are_named_and_nothing_is_recorded(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RCGP_DATA_HOME", str(tmp_path))  # an empty folder
    assert run(["reproduce", "figure_flash_crash", "--jobs", "1", "--output", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert "djia_20130423_open_2min.csv" in err
    assert err.splitlines()[-1].startswith("rcgp: some runs failed")
    assert not (tmp_path / "out" / "figure_flash_crash.jsonl").exists()
