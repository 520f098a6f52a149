"""``rcgp reproduce`` as its users meet it."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from urllib.error import URLError

import pytest
from rich.console import Console

import rcgp_paper.reproduce as commands
from rcgp.cli import run
from rcgp_paper.experiments import EXPERIMENTS, Failure, Options, Record, RecordFile
from rcgp_paper.experiments.tables import TABLE_1, TABLE_C_LOO


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
def test_errors_are_one_sentence(arguments, message, tmp_path, capsys):
    assert run(["reproduce", *arguments, "--output", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_folder_that_is_a_file_is_one_sentence(tmp_path, capsys):
    (tmp_path / "out").write_text("")
    for name in ("figure_weights", "report", "all"):
        assert run(["reproduce", name, "--output", str(tmp_path / "out")]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def some_of_table_1(options):
    """The fast methods on the smallest data."""
    cells = [("synthetic", "clean", method) for method in ("gp", "rcgp", "winsorized")]
    return [c for c in TABLE_1.configs(options) if (c["data"], c["contamination"], c["method"]) in cells]


def some_of_table_c_loo(options):
    return [c for c in TABLE_C_LOO.configs(options) if c["data"] == "synthetic" and c["contamination"] == "focused"]


@pytest.mark.slow
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


@pytest.mark.slow
def test_only_some_methods_are_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(commands, "EXPERIMENTS", {"table1": replace(TABLE_1, configs=some_of_table_1)})
    command = ["reproduce", "table1", "--quick", "--jobs", "1", "--output", str(tmp_path)]
    assert run([*command, "--methods", "rcgp,gp"]) == 0
    records, _ = RecordFile(tmp_path / "table1.jsonl").read()
    assert {record.config["method"] for record in records} == {"gp", "rcgp"}
    assert run([*command, "--methods", "gp,svm"]) == 2
    err = capsys.readouterr().err
    assert "svm" in err
    assert "winsorized" in err


@pytest.mark.parametrize(
    ("arguments", "note"),
    [
        (["--protocol", "published"], "--protocol has no effect on figure_weights"),
        (["--splits", "3"], "--splits 3 is more than there are: one repetition of figure_weights"),
        (["--protocol", "paper", "--splits", "1"], "--protocol has no effect on figure_weights"),
        ([], None),
    ],
)
def test_options_without_effect_are_noted(arguments, note, recorded, capsys):
    assert run(["reproduce", "figure_weights", "--output", str(recorded), *arguments]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert notes == ([] if note is None else [f"note: {note}"])


def test_table_2_notes_its_ten_repetitions_but_not_the_protocol(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(commands, "run_experiment", lambda *arguments: ([], [], []))
    monkeypatch.setattr(commands, "unavailable", lambda names: {})
    command = ["reproduce", "table2", "--protocol", "published", "--output", str(tmp_path)]
    assert run([*command, "--splits", "20"]) == 0
    assert capsys.readouterr().err == "note: --splits 20 is more than there are: 10 repetitions of table2\n"
    assert run(command) == 0  # no note on the default of fifty
    assert capsys.readouterr().err == ""


@pytest.fixture
def recorded(tmp_path):
    """A folder with the record of one figure, so that nothing is left to run."""
    values = EXPERIMENTS["figure_weights"].run({"index": 0})
    RecordFile(tmp_path / "figure_weights.jsonl").append(Record("figure_weights", {"index": 0}, values, code="older"))
    return tmp_path


def test_a_report_notes_broken_lines_and_unused_options_and_keeps_the_records(recorded, capsys):
    path = recorded / "figure_weights.jsonl"
    path.write_bytes(path.read_bytes() + b'{"cut sho')
    before = path.read_bytes()
    assert run(["reproduce", "report", "--splits", "3", "--quick", "--output", str(recorded)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{recorded / 'reproduction.html'}\n"
    assert err.splitlines() == [
        "note: --splits has no effect on report",
        "note: --quick has no effect on report",
        f"note: {path}: 1 broken line left out; 1 read",
    ]
    assert path.read_bytes() == before


def test_a_second_process_ends_with_one_sentence(recorded, capsys):
    with RecordFile(recorded / "figure_weights.jsonl").locked():
        assert run(["reproduce", "figure_weights", "--output", str(recorded)]) == 2
    sentence = f"rcgp: another process is running figure_weights in {str(recorded)!r}: wait for its end\n"
    assert capsys.readouterr().err == sentence


def test_records_are_repeated_on_request(recorded, monkeypatch, capsys):
    requested = []
    monkeypatch.setattr(commands, "run_experiment", lambda *arguments: requested.append(arguments[5]) or ([], [], []))
    monkeypatch.setattr(commands, "unavailable", lambda names: {})
    assert run(["reproduce", "figure_weights", "--redo", "gp", "--output", str(recorded)]) == 2
    assert capsys.readouterr().err == f"rcgp: there are no records of 'gp' to redo in {str(recorded)!r}\n"
    assert run(["reproduce", "figure_weights", "--redo", "all", "--splits", "2", "--output", str(recorded)]) == 0
    assert "note: --splits has no effect with --redo" in capsys.readouterr().err
    config = {"data": "yacht", "contamination": "clean", "method": "rcgp", "protocol": "paper", "index": 0}
    RecordFile(recorded / "table1.jsonl").append(Record("table1", config, {}))
    assert run(["reproduce", "table1", "--redo", "gp", "--output", str(recorded)]) == 2
    assert capsys.readouterr().err.endswith("; there are those of rcgp\n")
    assert run(["reproduce", "table1", "--redo", "rcgp", "--output", str(recorded)]) == 0
    assert run(["reproduce", "table1", "--output", str(recorded)]) == 0
    assert requested == ["all", "rcgp", None]


def test_an_interrupt_reports_that_finished_runs_are_kept(tmp_path, monkeypatch, capsys):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "run_experiment", interrupt)
    assert run(["reproduce", "figure_weights", "--output", str(tmp_path)]) == 130
    said = "rcgp: interrupted; finished runs are kept, and the same command continues from there\n"
    assert capsys.readouterr().err == said


INCOMPLETE = "rcgp: not everything could be done, see above; the same command tries the rest again"


def test_many_failures_are_not_all_shown(tmp_path, monkeypatch, capsys):
    failures = [Failure({"index": index}, "the process died; out of memory?") for index in range(13)]
    monkeypatch.setattr(commands, "run_experiment", lambda *arguments: ([], failures, []))
    assert run(["reproduce", "figure_weights", "--output", str(tmp_path)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "failed: figure_weights {'index': 0}: the process died; out of memory?"
    assert lines[10:] == [
        "failed: figure_weights, 3 more",
        INCOMPLETE,
    ]


class Screen(io.StringIO):
    def isatty(self):
        return True


def test_the_time_left_is_known_when_runs_take_minutes(monkeypatch):
    clock, bars = [0.0], []

    class Bar(commands.Progress):
        def __init__(self, *columns, **options):
            super().__init__(*columns, get_time=lambda: clock[0], **options)
            bars.append(self)

    monkeypatch.setattr(commands, "Progress", Bar)
    console = Console(file=Screen(), force_terminal=True, force_interactive=True)
    with commands._progress(EXPERIMENTS["table1"], console) as report:
        for done in range(5):
            report(done, 10)
            clock[0] += 120.0
        assert bars[0].tasks[0].time_remaining == pytest.approx(6 * 120.0)


def reported(console, monkeypatch, steps):
    """The printed progress: each step is seconds on the clock, and finished runs of ten."""
    clock = [0.0]
    monkeypatch.setattr(commands.time, "monotonic", lambda: clock[0])
    with commands._progress(EXPERIMENTS["table1"], console) as report:
        for clock[0], done in steps:
            report(done, 10)
    return console.file.getvalue()


@pytest.mark.parametrize("forced", [None, True])
def test_a_log_has_a_line_of_progress_every_half_minute(forced, monkeypatch):
    console = Console(file=io.StringIO(), force_terminal=forced, highlight=False)
    # Four were recorded before. While a long run goes on, the runner reports again and again.
    steps = [(0, 4), (10, 4), (31, 4), (50, 5), (60, 6), (70, 7), (91, 7), (100, 10)]
    said = reported(console, monkeypatch, steps)
    assert said.splitlines() == [
        "table1: 4 of 10 runs done in 0:00:31, time left not known yet",
        "table1: 7 of 10 runs done in 0:01:10, about 0:01:10 left",
        "table1: 10 of 10 runs done in 0:01:40",
    ]
    assert not set(said) & {"\r", "\x1b"}


def test_a_log_of_what_is_soon_done_has_no_line_of_progress(monkeypatch):
    console = Console(file=io.StringIO(), highlight=False)
    assert reported(console, monkeypatch, [(0, 0), (10, 5), (20, 10)]) == ""


@pytest.fixture
def no_data(tmp_path, monkeypatch):
    """An empty folder of data files, and no network. Returns the list of requested data sets."""
    requested = []

    def refuse(**arguments):
        requested.append(arguments["data_id"])
        raise URLError("no network")

    monkeypatch.setattr("sklearn.datasets.fetch_openml", refuse)
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("RCGP_DATA_HOME", str(tmp_path / "data"))
    return requested


def test_data_that_are_missing_are_named_and_nothing_is_recorded(tmp_path, no_data, capsys):
    assert run(["reproduce", "figure_flash_crash", "--jobs", "1", "--output", str(tmp_path / "out")]) == 1
    folder = str(tmp_path / "data")
    assert capsys.readouterr().err.splitlines() == [
        f"missing data: data set 'flash_crash' was not found: put djia_20130423_open_2min.csv into {folder!r}",
        "missing data: data set 'flash_crash_two_days' was not found: "
        f"put djia_20130422_23_close_1min.csv into {folder!r}",
        "not run: figure_flash_crash, 1 run, for want of flash_crash",
        "not run: figure_flash_crash, 1 run, for want of flash_crash_two_days",
        INCOMPLETE,
    ]
    assert not (tmp_path / "out" / "figure_flash_crash.jsonl").exists()


def gp_and_winsorized(options):
    """Two methods on all data sets, clean."""
    methods = ("gp", "winsorized")
    return [c for c in TABLE_1.configs(options) if c["contamination"] == "clean" and c["method"] in methods]


def gp_of_c_loo(options):
    return [c for c in TABLE_C_LOO.configs(options) if c["contamination"] == "clean" and c["method"] == "gp"]


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["paper", "published"])
def test_missing_data_are_reported_once_and_other_data_run(protocol, tmp_path, no_data, monkeypatch, capsys):
    tables = {
        "table1": replace(TABLE_1, configs=gp_and_winsorized),
        "table_c_loo": replace(TABLE_C_LOO, configs=gp_of_c_loo),
    }
    monkeypatch.setattr(commands, "EXPERIMENTS", tables)
    command = ["reproduce", "all", "--protocol", protocol, "--splits", "2", "--jobs", "1", "--output", str(tmp_path)]
    assert run(command) == 1
    out, err = capsys.readouterr()
    boston = "boston" if protocol == "paper" else "boston_readfwf"
    missing = [line for line in err.splitlines() if line.startswith("missing data: ")]
    assert [re.search("data set '(.*?)'", line)[1] for line in missing] == [boston, "energy", "yacht"]
    assert missing[2].endswith(f": put yacht.csv into {str(tmp_path / 'data')!r}")
    assert no_data == ([531, 44960] if protocol == "paper" else [44960])  # each was tried once
    assert [line for line in err.splitlines() if line.startswith("not run: ")] == [
        f"not run: {table}, {count} runs, for want of {data}"
        for table, count in (("table1", 4), ("table_c_loo", 2))
        for data in (boston, "energy", "yacht")
    ]
    assert "failed" not in err
    assert err.splitlines()[-1] == INCOMPLETE
    assert out == f"{tmp_path / 'reproduction.html'}\n"
    configs = [record.config for record in RecordFile(tmp_path / "table1.jsonl")]
    assert {c["data"] for c in configs} == {"synthetic"}
    assert len(configs) == 4
    assert "| synthetic |" in (tmp_path / "table1.md").read_text()


def test_data_of_recorded_runs_are_not_missed(tmp_path, no_data, capsys):
    values = {"price": [1.0, 2.0]}  # cannot be drawn, but is a record
    for config in EXPERIMENTS["figure_flash_crash"].configs(Options()):
        RecordFile(tmp_path / "figure_flash_crash.jsonl").append(Record("figure_flash_crash", config, values))
    assert run(["reproduce", "figure_flash_crash", "--output", str(tmp_path)]) == 0
    assert "missing data" not in capsys.readouterr().err


def test_a_data_folder_that_does_not_exist_is_reported_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RCGP_DATA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setattr(commands, "run_experiment", lambda *arguments: ([], [], []))
    assert run(["reproduce", "table1", "--splits", "2", "--output", str(tmp_path)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "which is not a folder" in line] == lines[:1]


def _broken(config):
    raise RuntimeError("this one fails")


def _unfit(*arguments):
    raise LookupError("no such thing")


@pytest.mark.slow
def test_other_experiments_run_after_failures_which_are_listed_last(tmp_path, monkeypatch, capsys):
    """A run that raises, an experiment that another process holds, and one whose rendering fails."""
    names = ("figure_outliers", "figure_prior_mean", "figure_varying_c", "figure_weights")
    chosen = {name: EXPERIMENTS[name] for name in names}
    chosen["figure_outliers"] = replace(chosen["figure_outliers"], run=_broken)
    chosen["figure_varying_c"] = replace(chosen["figure_varying_c"], run=EXPERIMENTS["figure_weights"].run)
    monkeypatch.setattr(commands, "EXPERIMENTS", chosen)
    render = commands.render
    monkeypatch.setattr(commands, "render", lambda name, *rest: (_unfit if "varying" in name else render)(name, *rest))
    with RecordFile(tmp_path / "figure_prior_mean.jsonl").locked():
        assert run(["reproduce", "all", "--jobs", "1", "--output", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    weights = [f"figure_weights: {tmp_path / 'figure_weights'}.{suffix}" for suffix in ("pdf", "png")]
    assert err.splitlines()[:5] == [
        *weights,
        "failed: figure_outliers {'index': 0}: RuntimeError: this one fails",
        f"failed: figure_prior_mean: LockedError: another process is running figure_prior_mean in "
        f"{str(tmp_path)!r}: wait for its end",
        "failed: figure_varying_c: LookupError: no such thing",
    ]
    assert err.splitlines()[-1] == INCOMPLETE
    assert out == f"{tmp_path / 'reproduction.html'}\n"
    page = (tmp_path / "reproduction.html").read_text()
    assert EXPERIMENTS["figure_weights"].title in page
    assert page.count("data:image/png") == 1


def test_where_everything_fails_there_is_no_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        commands, "EXPERIMENTS", {"figure_outliers": replace(EXPERIMENTS["figure_outliers"], run=_broken)}
    )
    assert run(["reproduce", "all", "--jobs", "1", "--output", str(tmp_path)]) == 1
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "reproduction.html").exists()


def reproduced(name, folder, methods, redo=None, splits=2):
    """Run the command with some methods; returns its output."""
    console = Console(file=io.StringIO(), highlight=False)
    commands.run_and_render_all(name, None, splits, False, redo, folder, 1, console, methods)
    return console.file.getvalue()


@pytest.mark.slow
def test_only_given_methods_are_run_and_all_records_are_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "EXPERIMENTS", {"table1": replace(TABLE_1, configs=some_of_table_1)})
    file = RecordFile(tmp_path / "table1.jsonl")
    reproduced("table1", tmp_path, ["winsorized"], splits=1)
    assert [record.config["method"] for record in file] == ["winsorized"]
    reproduced("table1", tmp_path, ["gp, winsorized"], splits=1)
    assert [record.config["method"] for record in file] == ["winsorized", "gp"]
    assert "|  | GP | winsorized GP |" in (tmp_path / "table1.md").read_text()


@pytest.mark.parametrize(
    ("name", "methods", "message"),
    [
        ("table_c_loo", ["gp,svm"], "there is no method 'svm': name some of gp, rcgp, rcgp-c-loo"),
        ("table1", ["rcgp-c-loo"], "there is no method 'rcgp-c-loo': name some of gp, rcgp, learned, t-gp, m-gp"),
        ("table1", ["gp,"], "there is no method '': name some of gp"),
        ("table2", ["gp"], "the runs of table2 are not of single methods: leave --methods out"),
        ("figure_weights", ["gp"], "the runs of figure_weights are not of single methods: leave --methods out"),
    ],
)
def test_methods_that_an_experiment_does_not_have_raise(name, methods, message, tmp_path):
    with pytest.raises(ValueError, match=re.escape(message)):
        reproduced(name, tmp_path / "out", methods)
    assert not (tmp_path / "out").exists()


def test_experiments_without_methods_run_completely_with_a_note(tmp_path, monkeypatch):
    requested = {}
    monkeypatch.setattr(
        commands,
        "run_experiment",
        lambda experiment, options, *rest: requested.update({experiment.name: options}) or ([], [], []),
    )
    monkeypatch.setattr(commands, "unavailable", lambda names: {})
    chosen = {name: EXPERIMENTS[name] for name in ("table1", "table2", "figure_weights")}
    monkeypatch.setattr(commands, "EXPERIMENTS", chosen)
    said = reproduced("all", tmp_path, ["m-gp"], splits=1)
    assert said == "note: --methods has no effect on table2, figure_weights\n"
    assert {name: options.methods for name, options in requested.items()} == dict.fromkeys(chosen, ("m-gp",))


def test_methods_have_no_effect_with_redo(recorded, monkeypatch):
    monkeypatch.setattr(commands, "run_experiment", lambda *arguments: ([], [], []))
    said = reproduced("figure_weights", recorded, ["gp"], redo="all", splits=None)
    assert said.splitlines()[0] == "note: --methods has no effect with --redo"
