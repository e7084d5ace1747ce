"""What commands print of untrusted files reaches a terminal, a spreadsheet or a figure as text and as nothing else."""

import csv
import io
import json
import os
from pathlib import Path

import pytest
import torch

from judging.ground.errors import ExitCode
from judging.pages.export import runs_at, write_csv
from judging.pages.plot import plot_quality
from judging.scoring.recorded_run import recorded_run_of
from mlevents.record import read
from mlevents.summary import summarize
from mlevents.terminal_escape import printable, printable_lines
from tests.security.hostile_logs import ESCAPE, HOSTILE, harmless, write_log
from timedrun.cli import main
from timedrun.evidence.submission.reproduction.repetition import compare_runs
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.run import worker

NAMES = ("submission_org", "submission_platform", "submission_benchmark", "dataset", "config_name")


@pytest.fixture
def hostile_results(tmp_path: Path) -> Path:
    """Two runs in which every name is hostile, as are a key that nobody knows and the folder's name."""
    folder = tmp_path / f"results{ESCAPE}"
    values = dict.fromkeys(NAMES, HOSTILE) | {HOSTILE: HOSTILE, "opt_name": HOSTILE}
    for number in range(2):
        write_log(folder / f"result_{number}.txt", values, seed=number + 1)
    return folder


COMMANDS = (
    *("check --no-official", "check", "check --json --no-official", "score", "score --json", "compare other"),
    *(
        "reproduce",
        "reproduce --run --results again",
        "report --figure figure.png other",
        "package --out package other",
    ),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_control_character_of_a_log_reaches_the_terminal(command, hostile_results, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path / "other" / "result_0.txt", {"dataset": f"other{ESCAPE}"})
    main([*command.split(), str(hostile_results)])
    said = capfd.readouterr()
    assert said.out or said.err
    assert harmless(said.out + said.err), said.out + said.err


def test_a_name_that_is_no_utf_8_is_shown_and_lines_of_a_message_are_kept(tmp_path, capfd):
    folder = tmp_path / os.fsdecode(b"set-\xff\x9b")
    write_log(folder / "result_0.txt")
    assert main(["check", "--no-official", str(folder)]) in (0, 1)
    assert "\\udcff" in capfd.readouterr().out
    assert printable("a\tb\nc") == "a\\tb\\nc"
    assert printable_lines(f"one\ntwo{ESCAPE}\rthree") == f"one\ntwo{printable(ESCAPE)}\\rthree"


def test_what_a_machine_says_of_itself_is_shown_harmless_when_a_result_is_judged_again(tmp_path):
    for name, word in (("then", ESCAPE), ("now", "plain")):
        write_log(tmp_path / name / "result_0.txt")
        side = tmp_path / name / "run_0"
        side.mkdir()
        (side / "environment.txt").write_text(f"processor {word} one\n{word}torch==1\n")
        (side / "system.json").write_text(json.dumps({"cooling": word}))
    then, now = (recorded_run_of(tmp_path / name / "result_0.txt") for name in ("then", "now"))
    verdict = compare_runs(f"set{ESCAPE}", [(then, now, "")])
    assert verdict.differs["hardware"] and harmless(verdict.text)


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "\t=", "\r="])
def test_no_cell_of_the_csv_is_a_formula(first, tmp_path):
    formula = f'{first}cmd|"/c calc"!A1'
    write_log(tmp_path / "result_0.txt", dict.fromkeys(("submission_platform", "dataset", "config_name"), formula))
    write_csv(runs_at([tmp_path]), tmp_path / "values.csv")
    _, *rows = csv.reader(io.StringIO((tmp_path / "values.csv").read_text()))
    cells = [cell for row in rows for cell in row if "calc" in cell]
    assert cells and not [cell for cell in cells if cell[:1] in ("=", "+", "-", "@", "\t", "\r")]
    assert all(harmless(cell) for row in rows for cell in row)


@pytest.mark.parametrize("name", [r"$\frac{1}{$", "$1 and $2", f"$x${ESCAPE}", "a" * 10_000])
def test_names_in_a_figure_are_text_and_no_formulas(name, tmp_path):
    pytest.importorskip("matplotlib")
    path = write_log(tmp_path / "result_0.txt", {"dataset": name, "config_name": name})
    plot_quality({name: [summarize(read(path))]}, tmp_path / "figure.svg")
    drawn = (tmp_path / "figure.svg").read_text()
    assert len(drawn) < 1 << 20 and "\x1b" not in drawn


def test_the_reason_that_ends_a_run_from_another_thread_is_shown_harmless(monkeypatch, capsys):
    monkeypatch.setattr(worker.os, "_exit", lambda code: None)
    worker.Ending(ProcessGroup(0, 1, 0, torch.device("cpu")))(f"rank 1: DataError: a{ESCAPE}\n.jpeg", ExitCode.ERROR)
    assert harmless(capsys.readouterr().err)
