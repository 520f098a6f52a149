"""``rcgp reproduce`` as its users meet it."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

import rcgp.cli.reproduce as commands
from rcgp.cli import run
from rcgp.experiments import EXPERIMENTS, Failure, Record, RecordFile
from rcgp.experiments.tables import TABLE_1, TABLE_C_LOO


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
        (["table1", "--redo", "gp"], "there are no records of 'gp' to redo in"),
    ],
)
def test_what_cannot_be_reproduced_is_one_sentence(arguments, message, tmp_path, capsys):
    assert run(["reproduce", *arguments, "--output", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_folder_that_is_a_file_is_one_sentence(tmp_path, capsys):
    (tmp_path / "out").write_text("")
    for name in ("figure_weights", "report"):
        assert run(["reproduce", name, "--output", str(tmp_path / "out")]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def some_of_table_1(options):
    """The fast methods on the smallest data."""
    cells = [("synthetic", "clean", method) for method in ("gp", "rcgp", "winsorized")]
    return [c for c in TABLE_1.configs(options) if (c["data"], c["contamination"], c["method"]) in cells]


def some_of_table_c_loo(options):
    return [c for c in TABLE_C_LOO.configs(options) if c["data"] == "synthetic" and c["contamination"] == "focused"]


@pytest.mark.parametrize(
    ("experiment", "configs", "columns", "paper"),
    [
        (TABLE_1, some_of_table_1, ["GP", "RCGP", "winsorized GP"], "0.09"),
        (TABLE_C_LOO, some_of_table_c_loo, ["GP", "RCGP", "RCGP, c by LOO"], "0.19"),
    ],
    ids=["table1", "table_c_loo"],
)
def test_a_table_is_run_and_rendered(experiment, configs, columns, paper, tmp_path, monkeypatch, capsys):
    name = experiment.name
    monkeypatch.setattr(commands, "EXPERIMENTS", {name: replace(experiment, configs=configs)})
    assert run(["reproduce", name, "--quick", "--splits", "3", "--jobs", "1", "--output", str(tmp_path)]) == 0
    err = capsys.readouterr().err
    assert f"note: --splits 3 is more than there are with --quick: one repetition of {name}" in err
    records, notices = RecordFile(tmp_path / f"{name}.jsonl").read()
    assert notices == []
    assert len(records) == len(columns)
    assert all(0.0 < record.values["mae"] < 0.5 for record in records)
    assert {(record.seed, record.experiment) for record in records} == {(0, name)}
    markdown = (tmp_path / f"{name}.md").read_text()
    assert f"|  | {' | '.join(columns)} |" in markdown
    assert re.search(rf"\| synthetic \| 0\.\d\d\d / {paper} \|", markdown)
    assert "One run in each cell" in markdown
    assert not list(tmp_path.glob("*.lock"))


@pytest.mark.parametrize(
    ("arguments", "note"),
    [
        (["--protocol", "published"], "--protocol means nothing to figure_weights"),
        (["--splits", "3"], "--splits 3 is more than there are: one repetition of figure_weights"),
        (["--protocol", "paper", "--splits", "1"], "--protocol means nothing to figure_weights"),
        ([], None),
    ],
)
def test_options_that_change_nothing_are_told_of(arguments, note, recorded, capsys):
    assert run(["reproduce", "figure_weights", "--output", str(recorded), *arguments]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert notes == ([] if note is None else [f"note: {note}"])


def test_table_2_tells_of_its_ten_repetitions_and_of_the_protocol_says_nothing(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(commands, "run_experiment", lambda *arguments: ([], [], []))
    command = ["reproduce", "table2", "--protocol", "published", "--output", str(tmp_path)]
    assert run([*command, "--splits", "20"]) == 0
    assert capsys.readouterr().err == "note: --splits 20 is more than there are: 10 repetitions of table2\n"
    assert run(command) == 0  # nobody asked for the fifty of the default
    assert capsys.readouterr().err == ""


@pytest.fixture
def recorded(tmp_path):
    """A folder with the record of one figure, so that nothing is left to run."""
    values = EXPERIMENTS["figure_weights"].run({"index": 0})
    RecordFile(tmp_path / "figure_weights.jsonl").append(Record("figure_weights", {"index": 0}, values, code="older"))
    return tmp_path


def test_a_report_tells_of_broken_lines_and_of_options_without_meaning_and_leaves_the_records(recorded, capsys):
    path = recorded / "figure_weights.jsonl"
    path.write_bytes(path.read_bytes() + b'{"cut sho')
    before = path.read_bytes()
    assert run(["reproduce", "report", "--splits", "3", "--quick", "--output", str(recorded)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{recorded / 'reproduction.html'}\n"
    assert err.splitlines() == [
        "note: --splits means nothing to report",
        "note: --quick means nothing to report",
        f"note: {path}: 1 broken line left out; 1 read",
    ]
    assert path.read_bytes() == before


def test_a_second_process_ends_with_one_sentence(recorded, capsys):
    with RecordFile(recorded / "figure_weights.jsonl").locked():
        assert run(["reproduce", "figure_weights", "--output", str(recorded)]) == 2
    sentence = f"rcgp: another process is running figure_weights in {str(recorded)!r}: wait for its end\n"
    assert capsys.readouterr().err == sentence


def test_records_are_made_again_when_asked_for(recorded, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(commands, "run_experiment", lambda *arguments: asked.append(arguments[-1]) or ([], [], []))
    assert run(["reproduce", "figure_weights", "--redo", "gp", "--output", str(recorded)]) == 2
    assert capsys.readouterr().err == f"rcgp: there are no records of 'gp' to redo in {str(recorded)!r}\n"
    assert run(["reproduce", "figure_weights", "--redo", "all", "--splits", "2", "--output", str(recorded)]) == 0
    assert "note: --splits means nothing with --redo" in capsys.readouterr().err
    config = {"data": "yacht", "contamination": "clean", "method": "rcgp", "protocol": "paper", "index": 0}
    RecordFile(recorded / "table1.jsonl").append(Record("table1", config, {}))
    assert run(["reproduce", "table1", "--redo", "gp", "--output", str(recorded)]) == 2
    assert capsys.readouterr().err.endswith("; there are those of rcgp\n")
    assert run(["reproduce", "table1", "--redo", "rcgp", "--output", str(recorded)]) == 0
    assert run(["reproduce", "table1", "--output", str(recorded)]) == 0
    assert asked == ["all", "rcgp", None]


def test_an_interrupt_says_that_finished_runs_are_kept(tmp_path, monkeypatch, capsys):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "run_experiment", interrupt)
    assert run(["reproduce", "figure_weights", "--output", str(tmp_path)]) == 130
    said = "rcgp: interrupted; finished runs are kept, and the same command goes on from there\n"
    assert capsys.readouterr().err == said


def test_many_failures_are_not_all_shown(tmp_path, monkeypatch, capsys):
    failures = [Failure({"index": index}, "the process died; out of memory?") for index in range(13)]
    monkeypatch.setattr(commands, "run_experiment", lambda *arguments: ([], failures, []))
    assert run(["reproduce", "table1", "--output", str(tmp_path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "failed: table1 {'index': 0}: the process died; out of memory?"
    assert lines[10:] == [
        "failed: table1, 3 more",
        "rcgp: some runs failed, see above; the same command tries them again",
    ]


def test_the_time_left_is_known_when_runs_take_minutes(monkeypatch):
    clock, bars = [0.0], []

    class Bar(commands.Progress):
        def __init__(self, *columns, **options):
            super().__init__(*columns, get_time=lambda: clock[0], **options)
            bars.append(self)

    monkeypatch.setattr(commands, "Progress", Bar)
    console = Console(file=io.StringIO(), force_terminal=True)
    with commands._progress(EXPERIMENTS["table1"], console) as report:
        for done in range(5):
            report(done, 10)
            clock[0] += 120.0
        assert bars[0].tasks[0].time_remaining == pytest.approx(6 * 120.0)


def test_data_that_are_missing_are_named_and_nothing_is_recorded(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RCGP_DATA_HOME", str(tmp_path))  # an empty folder
    assert run(["reproduce", "figure_flash_crash", "--jobs", "1", "--output", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert "djia_20130423_open_2min.csv" in err
    assert err.splitlines()[-1].startswith("rcgp: some runs failed")
    assert not (tmp_path / "out" / "figure_flash_crash.jsonl").exists()
