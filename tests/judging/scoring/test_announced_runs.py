"""Sets against their ledger: all announced runs, the median window, or the names of those that are missing."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from judging.checking.verdicts import check_paths
from judging.ground import ledger
from judging.scoring.announced_runs import ledger_findings
from mlevents import keys
from mlevents.record import natural, read
from mlevents.summary import summarize
from tests.judging.ground.test_ledger import FACTS
from timedrun.evidence.submission.packaging.package import package

TIMES = (10.0, 30.0, 11.0, 12.0, 13.0, 14.0, 60.0)


def announced_set(make_set, folder: Path, times: Sequence[float] = TIMES, not_closed: int = -1) -> Path:
    """Announce and close a run for each of `times`, as runs do."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    (folder.parent / ledger.LEDGER).touch()
    entries = [ledger.announce(folder / f"result_{number}.txt", **FACTS) for number in range(len(times))]
    make_set(folder, times=times, config_digest="d", **{keys.LEDGER_ENTRY: "0" * 64})
    for number, entry in enumerate(entries):
        log = folder / f"result_{number}.txt"
        log.write_text(log.read_text().replace("0" * 64, entry))
        if number != not_closed:
            ledger.close(log)
    return folder


@pytest.fixture
def announced(tmp_path, make_set) -> Path:
    """A set whose seven runs were all announced and closed."""
    return announced_set(make_set, tmp_path / "runs" / "set")


def said(folder: Path) -> list[tuple[str, str]]:
    logs = sorted(folder.glob("result_*.txt"), key=lambda path: natural(path.name))
    return [(finding.level, finding.message) for finding in ledger_findings([summarize(read(log)) for log in logs])]


def test_all_the_median_window_and_any_other_selection_are_told_apart(announced):
    all_of = "7 runs announced with this config on this system"
    held = " (runs in the ledger: 7)"
    assert said(announced) == [("note", f"these are all {all_of}{held}")]
    # Olympic means of the windows 0-4, 1-5, 2-6: 12, 13, 13 minutes; the upper one of equal ones is the later.
    for number in (0, 6):
        (announced / f"result_{number}.txt").unlink()
    assert said(announced) == [("note", f"this is the median window of the {all_of}{held}")]
    (announced / "result_1.txt").unlink()
    missing = "run 1, set/result_0.txt (10.000 min), run 2, set/result_1.txt (30.000 min), run 7, set/result_6.txt"
    assert said(announced) == [("warning", f"4 of the {all_of}; not in the set: {missing} (60.000 min){held}")]


def test_a_run_that_was_never_closed_is_named(tmp_path, make_set):
    folder = announced_set(make_set, tmp_path / "runs" / "set", times=(10.0, 11.0, 12.0, 13.0, 14.0), not_closed=1)
    assert "5 of the 5 runs announced" in said(folder)[0][1]
    assert "never closed: run 2, set/result_1.txt" in said(folder)[0][1]
    (folder / "result_1.txt").unlink()
    assert "not in the set: run 2, set/result_1.txt (never closed)" in said(folder)[0][1]


@pytest.mark.parametrize("hide", [False, True])
def test_an_altered_log_fails_the_set_even_if_it_hides_its_announcement(announced, hide):
    log = announced / "result_2.txt"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(line for line in lines if not (hide and keys.LEDGER_ENTRY in line)) + " ")
    of_set = next(result for result in check_paths([announced], None, run_official=False) if result.kind == "set")
    assert of_set.strict == "fail"
    assert ("error", "result_2.txt was altered: its SHA-256 is not that of run 3 in the ledger") in said(announced)


def test_a_broken_chain_fails_the_set_and_nothing_else_is_said(announced):
    path = announced.parent / ledger.LEDGER
    text = path.read_text().replace('"minutes":60.0', '"minutes":6.0')
    path.write_text("".join(text.splitlines(keepends=True)[1:]))
    ((level, message),) = said(announced)
    assert level == "error" and "the chain is broken: line 1 does not hold the SHA-256 of the line before" in message


def test_logs_of_others_below_a_ledger_are_left_alone_and_own_ones_without_it_are_noted(announced, make_set):
    runs = announced.parent
    assert said(make_set(runs / "foreign")) == []
    ((level, message),) = said(make_set(runs / "older", config_digest="d"))
    assert level == "warning" and "does not announce the run of result_0.txt, result_1.txt" in message
    (runs / ledger.LEDGER).unlink()
    assert [level for level, _ in said(announced)] == ["note"]
    assert said(runs / "foreign") == []


def test_a_package_carries_its_ledger_and_its_reader_gets_the_same_sentence(announced, tmp_path, source):
    report = package([announced], tmp_path / "out", submitter="Example", source=source, check=False)
    sentence = "this is the median window of the 7 runs announced with this config on this system"
    assert sentence in (report.folder / "README.md").read_text()
    assert "ledger head " in "\n".join(report.notes)
    moved = report.folder.rename(tmp_path / "Moved")
    logs = moved / "results" / "1xCPU-baseline" / "resnet"
    assert said(logs) == [("note", f"{sentence} (runs in the ledger: 7)")]
    log = logs / "result_2.txt"
    log.write_text("".join(line for line in log.read_text().splitlines(True) if keys.LEDGER_ENTRY not in line))
    assert ("error", "the ledger does not announce the run of result_2.txt") in said(logs)
    next(moved.rglob(ledger.LEDGER)).unlink()
    assert [level for level, _ in said(logs)] == ["warning"]


def test_a_run_that_ended_before_its_clock_is_counted_apart(announced):
    early = announced / "result_9.txt"
    entry = ledger.announce(early, **FACTS)
    started = (announced / "result_0.txt").read_text().split("run_start")[0].rpartition("\n")[0]
    early.write_text(started.replace(read(announced / "result_0.txt").value(keys.LEDGER_ENTRY), entry) + "\n")
    ledger.close(early)
    early.unlink()
    rest = "(runs in the ledger: 8; 1 of this config ended before the clock)"
    assert said(announced) == [("note", f"these are all 7 runs announced with this config on this system {rest}")]
