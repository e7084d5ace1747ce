"""`timedrun referee`: exit codes, reports of one and of several examinations, and refusals before any code is run."""

import dataclasses
import json
import re
import signal
import tempfile
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from judging.comparison.speedup_ratio import compare
from judging.ground.errors import DataError, ExitCode, UsageError
from judging.ground.token_shard import MAGIC, write_shard
from referee import contents, sandbox
from referee.referee import Examination, Referee
from referee.sandbox import MOST_SHARDS, SandboxUnavailable
from referee.series import Retiming, Series
from referee.token_files import read, renumbered, shards, windows
from referee.verdict import Finding, Verdict
from tests.referee.conftest import SETTINGS, made_referee
from tests.referee.submissions import HONEST
from timedrun import cli


def command(submission: Path, tokens: Path, *more: object) -> list[object]:
    (tokens / "limits.toml").write_text("rows = 32\nmargin = 0.15\n")
    task = ["--vocabulary", 64, "--context", 32, "--threads", 1, "--limits", tokens / "limits.toml"]
    data = ["--train", tokens / "train.npy", "--validation", tokens / "validation.npy"]
    return ["referee", submission, *data, *task, *more]


def write_plain(folder: Path, first: str = "") -> None:
    """Write an honest submission that begins with the line `first`."""
    (folder / "submission.py").write_text(first + HONEST)
    (folder / "base.py").write_text(Path(__file__).with_name("base.py").read_text())


@pytest.mark.processes
@pytest.mark.usefixtures("referee")  # skips where there is no sandbox
def test_a_missed_target_is_the_only_finding_also_beside_a_temporary_environment(token_files, monkeypatch, told):
    found = sandbox.readable()
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder, code = Path(name, "seen"), Path(name, "code")
        folder.mkdir()
        code.mkdir()
        (folder / "marker.txt").write_text("")
        write_plain(code, first=f"open({str(folder / 'marker.txt')!r})\n")
        monkeypatch.setattr(sandbox, "readable", lambda: [*found, folder])
        said = told(*command(code, token_files, "--target", 1.0), code=3)
    assert (said["accepted"], said["isolated"], len(said["submission_sha256"])) == (False, True, 64)
    assert [found["probe"] for found in said["findings"] if not found["passed"]] == ["target"]


@pytest.mark.processes
def test_without_a_sandbox_the_verdict_says_so_and_each_examination_has_its_seed(token_files, tmp_path, capsys):
    write_plain(tmp_path)
    words = command(tmp_path, token_files, "--no-sandbox", "--runs", 2, "--target", 4.1)
    code = cli.main([*map(str, words)])
    said = capsys.readouterr().out
    assert "NOT ISOLATED" in said and ("accepted" in said) == (code == 0) and code in (0, 3)
    losses = re.findall(r"^ *[12] +(\d\.\d{4}) ", said, re.MULTILINE)
    assert len({*losses}) == 2, said


def test_what_cannot_be_kept_from_a_submission_is_refused_before_any_code_runs(token_files, tmp_path, monkeypatch):
    def made(train: str) -> Referee:
        return Referee(Examination(64, 32), token_files / train, token_files / "validation.npy", tmp_path)

    with pytest.raises(UsageError, match=r"validation\.npy is in the training and in the validation data"):
        made(".")
    with monkeypatch.context() as patch:
        patch.setattr(sandbox, "TOOLS", ("unshare", "a_tool_that_is_missing"))
        with pytest.raises(SandboxUnavailable, match=r"a_tool_that_is_missing not found.*\nNo submitted code was run"):
            made("train.npy")
    (tmp_path / "validation").mkdir()
    (tmp_path / "validation" / "v.npy").symlink_to(token_files / "validation.npy")
    monkeypatch.setattr("referee.referee.readable", lambda: [token_files])
    for validation in (token_files / "validation.npy", tmp_path / "validation"):
        with pytest.raises(UsageError, match="which submissions can read"):
            Referee(Examination(64, 32), token_files / "train.npy", validation, tmp_path)


def test_validation_data_with_an_unknown_token_and_a_prefix_without_a_row_are_refused(token_files, tmp_path, refused):
    tokens = np.load(token_files / "validation.npy")
    tokens[-1] = 64  # of no row
    np.save(tmp_path / "validation.npy", tokens)
    with pytest.raises(DataError, match=r"validation\.npy: token 64 where the vocabulary is 64"):
        Referee(Examination(64, 32), token_files / "train.npy", tmp_path / "validation.npy", tmp_path)
    write_plain(tmp_path)
    assert "--prefix 31: no whole row of --context 32" in refused(*command(tmp_path, token_files, "--prefix", 31))


@pytest.mark.processes
def test_a_session_is_given_all_files_and_more_than_it_can_be_given_are_refused(token_files, tmp_path):
    for number in range(MOST_SHARDS):
        np.save(tmp_path / f"{number:03}.npy", np.full(9, number % 64, np.uint8))
    code = "import torch\ndef build(task):\n    return torch.nn.Linear(1, 1)\n"
    code += "def train(model, task, shards):\n    raise ValueError(len(shards), max(map(len, shards)))\n"
    with made_referee(SETTINGS, tmp_path, token_files / "validation.npy", isolated=False) as made:
        (finding,) = made.examine({"submission.py": code.encode()}).failed
    assert "ValueError: (250, 9)" in finding.reason
    np.save(tmp_path / "250.npy", np.zeros(9, np.uint8))
    with pytest.raises(UsageError, match="251 files of training tokens, of 250 that a session can be given"):
        Referee(SETTINGS, tmp_path, token_files / "validation.npy", tmp_path)


def test_a_folder_of_a_speed_run_gives_the_part_by_its_name(tmp_path):
    train, val = ["text_train_000001.bin", "text_train_000002.bin"], ["text_val_000000.bin"]
    for name in (*train, *val):
        write_shard(tmp_path / name, np.arange(9, dtype=np.uint16))
    assert [shard.path.name for shard in shards(tmp_path, "train")] == train
    assert [shard.path.name for shard in shards(tmp_path, "val")] == val


def test_a_folder_without_submission_and_a_link_in_one_are_refused_unread(token_files, tmp_path, refused):
    assert "none" in refused(*command(tmp_path / "none", token_files))
    (tmp_path / "submission.py").write_text(HONEST)
    (tmp_path / "notes.txt").symlink_to(token_files / "validation.npy")
    assert "notes.txt" in refused(*command(tmp_path, token_files, "--no-sandbox"))


def test_both_kinds_of_token_files_are_read_and_renumbered_alike(tmp_path):
    tokens = np.random.default_rng(0).integers(50, size=1000).astype(np.uint16)
    np.save(tmp_path / "a.npy", tokens)
    write_shard(tmp_path / "b.bin", tokens)
    numbers = np.random.default_rng(1).permutation(50)
    files = shards(tmp_path, "train")
    for shard, copy in zip(files, renumbered(files, numbers, tmp_path, "copy"), strict=True):
        assert (read(shard) == tokens).all() and (np.argsort(numbers)[read(copy)] == tokens).all()


def test_a_copy_holds_the_largest_id_of_the_vocabulary_or_is_refused(tmp_path):
    tokens = np.arange(200, dtype=np.uint8)
    np.save(tmp_path / "a.npy", tokens)
    numbers = np.arange(300)[::-1].copy()
    (copy,) = renumbered(shards(tmp_path / "a.npy", "train"), numbers, tmp_path, "copy")
    assert (read(copy) == numbers[tokens]).all()
    write_shard(tmp_path / "b.bin", tokens.astype(np.uint16))
    with pytest.raises(DataError, match=r"b\.bin: uint16 cannot hold the ids of a vocabulary of 65,537"):
        renumbered(shards(tmp_path / "b.bin", "train"), np.arange(65_537), tmp_path, "copy")


@pytest.mark.parametrize("kind", ["npy", "bin"])
def test_the_two_copies_that_a_submission_is_trained_on_are_equal_in_form(kind, token_files, tmp_path, monkeypatch):
    tokens = np.load(token_files / "train.npy")
    write_shard(tmp_path / "train.bin", tokens)
    np.save(tmp_path / "train.npy", tokens)
    first, made = set(), []

    def sandboxed(data, **_):
        made[:] = [(name, of_name) for name, of_name in data.items()]
        forms = [
            (len(name), shard.offset, shard.count, shard.dtype, *(getattr(shard.path.stat(), f) for f in FORM))
            for name, (shard,) in data.items()
        ]
        assert forms[0] == forms[1]
        first.add((read(made[0][1][0]) == tokens).all() == (min(data) == made[0][0]))
        return Mock()

    monkeypatch.setattr("referee.referee.Sandbox", sandboxed)
    for seed in range(8):
        Referee(Examination(64, 32, seed=seed), tmp_path / f"train.{kind}", token_files / "validation.npy", tmp_path)
    assert first == {True, False}  # neither name nor order of writing says which is which


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "truncated within its header"),
        (bytes(2000), "not a shard of GPT-2 tokens"),
        (np.array([MAGIC, 1, 9000], np.int32).tobytes() + bytes(2000), "truncated, "),
        (np.array([MAGIC, 1, 0], np.int32).tobytes() + bytes(1012), "it has no tokens"),
    ],
)
def test_a_file_that_is_not_of_tokens_is_refused(content, reason, tmp_path):
    (tmp_path / "a.bin").write_bytes(content)
    with pytest.raises(DataError, match=reason):
        shards(tmp_path / "a.bin", "train")


def test_rows_do_not_overlap_and_positions_are_a_sample_where_answers_would_be_large(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(1801, dtype=np.uint16))
    found = windows(shards(tmp_path, "val"), context=100, vocabulary=2000, count=99, numbers_per_row=40_000, seed=0)
    assert (found.rows.shape, found.futures.shape) == ((9, 101), (9, 100))
    assert sorted([*found.rows[:, 0], *found.futures[:, 0]]) == [*range(0, 1800, 100)]
    assert found.positions.shape == (9, 20) and (np.diff(found.positions) > 0).all()
    assert (found.targets == np.take_along_axis(found.rows, found.positions, 1) + 1).all()


FORM = ("st_mode", "st_size", "st_mtime_ns", "st_uid", "st_dev", "st_nlink")
LOSSES = [3.2761, 3.2790, 3.2784, 3.2769, 3.2775]


def verdict(loss: float, seconds: float = 10.0, *, passed: bool = True) -> Verdict:
    findings = [Finding("causality", passed, "answers before changed tokens")]
    return Verdict("0" * 64, True, findings, train_seconds=seconds, loss=loss, standard_error=0.01)


def series(losses: list[float], target: float | None = 3.28) -> Series:
    return Series([verdict(loss, 10 + loss) for loss in losses], target)


def test_a_target_is_reached_by_the_one_sided_t_test():
    stats = pytest.importorskip("scipy.stats")
    judged = series(LOSSES)
    expected = stats.ttest_1samp(LOSSES, 3.28, alternative="less")
    interval = stats.ttest_1samp(LOSSES, 0).confidence_interval(0.95)
    assert judged.exit_code is ExitCode.OK and judged.as_json()["p_t"] == pytest.approx(expected.pvalue, rel=1e-9)
    assert f"{sum(LOSSES) / 5:.4f} +- {(interval.high - interval.low) / 2:.4f}" in judged.sentence
    assert judged.sentence.startswith("accepted: mean loss") and f"p = {expected.pvalue:.2g}" in judged.sentence


@pytest.mark.parametrize(
    ("losses", "reason"),
    [
        ([3.279, 3.284, 3.276], "about [0-9,]+ runs would show it"),
        ([3.279, 3.284, 3.286], "the mean misses it"),
        ([3.279, 3.279], "2 runs of one quality"),
    ],
)
def test_a_target_that_is_missed_by_chance_or_cannot_be_tested_says_so(losses, reason):
    judged = series(losses)
    said = judged.as_json()
    assert judged.exit_code is ExitCode.TARGET_NOT_REACHED and not said["accepted"]
    assert (said["p_t"] is None) == (len({*losses}) == 1)
    assert re.fullmatch(f"rejected: target 3.2800, mean loss .*{reason}.*", judged.sentence)


def test_without_a_target_the_interval_is_the_result_and_one_breach_rejects_the_submission():
    assert series(LOSSES, None).exit_code is ExitCode.OK and "target" not in series(LOSSES, None).sentence
    judged = Series([verdict(3.1), verdict(3.0, passed=False)], 3.28)
    assert judged.exit_code is ExitCode.ERROR
    assert judged.sentence == "run 2: rejected: causality; before: mean loss 3.1000 in 10.00 s of training, 1 run"
    assert "FAIL" in "\n".join(judged.lines(None)) and judged.lines(None)[-1] == judged.sentence


def test_a_record_is_beaten_by_pairs():
    fast, slow = [[verdict(3.27, seconds) for seconds in times] for times in ([10.0, 11.0, 9.0], [20.0, 21.0, 19.0])]
    judged = Retiming(Series(fast, None), Series(slow, None))
    expected = compare([20.0, 21.0, 19.0], [10.0, 11.0, 9.0], paired=True)
    said = judged.as_json()["ratio"]
    assert (said["ratio"], said["low"], said["verdict"]) == (expected.value, expected.low, "faster")
    assert judged.exit_code is ExitCode.OK and "the submission is faster" in judged.lines(None)[-2]


@pytest.mark.parametrize("breach_by", [0, 1])
@pytest.mark.parametrize("before", [0, 1, 3])
def test_a_breach_by_either_keeps_what_was_finished(breach_by, before):
    kept = [verdict(3.27 + n / 100, 10.0) for n in range(before)]
    both = [Series(kept, None, 5), Series([*kept, verdict(3.2, passed=False)], None, 5)]
    judged = Retiming(both[1 - breach_by], both[breach_by])
    assert (judged.exit_code, judged.ratio) == (ExitCode.ERROR, None)
    assert [series.qualities for series in both] == [[of.loss for of in kept]] * 2
    shown = "\n".join(judged.lines(None))
    assert judged.lines(None)[-1] == both[1 - breach_by].sentence
    assert f"run {before + 1}: rejected: causality" in shown and f"unfinished, {before} of 5 runs" in shown
    assert shown.count("3.2700") >= 2 * min(before, 1) and json.dumps(judged.as_json())


def test_an_undecided_run_leaves_a_series_undecided_and_its_losses_stand():
    unsure = dataclasses.replace(verdict(3.27), findings=[Finding("same quality", False, "times vary", undecided=True)])
    judged = Series([verdict(3.26), unsure], None, 2)
    assert (judged.exit_code, judged.qualities) == (ExitCode.INCONCLUSIVE, [3.26, 3.27])
    assert judged.sentence.startswith("run 2: undecided: same quality: times vary; mean loss 3.2650")
    assert Retiming(series(LOSSES, None), judged).exit_code is ExitCode.INCONCLUSIVE


class Judge:
    """Referee that runs nothing; `ended_by` ends its second examination."""

    ended_by: signal.Signals | None = None

    def __init__(self, *_: object, **__: object) -> None:
        self.examined: list[str] = []

    def __enter__(self) -> "Judge":
        return self

    def __exit__(self, *_: object) -> None: ...

    def examine(self, files: dict[str, bytes]) -> Verdict:
        self.examined.append(contents.digest(files))
        if len(self.examined) == 2 and self.ended_by is not None:
            signal.raise_signal(self.ended_by)
        judged = verdict(3.27, 10 + len(self.examined))
        return dataclasses.replace(judged, digest=self.examined[-1])


@pytest.mark.parametrize(("ended_by", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_signal_leaves_no_folder_and_the_report_of_what_was_finished(ended_by, code, token_files, tmp_path, printed):
    (tmp_path / "scratch").mkdir()
    write_plain(tmp_path)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    with pytest.MonkeyPatch.context() as patch, ExitStack() as undo:
        # A shell starts what it does not wait for with SIGINT ignored.
        undo.callback(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))
        patch.setattr("timedrun.commands.referee.Referee", type("Ended", (Judge,), {"ended_by": ended_by}))
        (limits := tmp_path / "limits.toml").write_text(f"scratch = '{tmp_path / 'scratch'}'\n")
        line = command(tmp_path, token_files, "--runs", 4, "--limits", limits)
        said = printed(*line, code=code)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == handlers
    assert "unfinished, 1 of 4 runs: mean loss 3.2700" in said
    assert not [*(tmp_path / "scratch").iterdir()]


def test_a_script_and_a_record_are_examined_in_turns(token_files, tmp_path, told, refused, monkeypatch):
    paths = [tmp_path / "submission", tmp_path / "record"]
    for path, first in zip(paths, ("", "import time\n"), strict=True):
        path.mkdir()
        write_plain(path, first)
    judge = Judge()
    monkeypatch.setattr("timedrun.commands.referee.Referee", lambda *_, **__: judge)
    line = command(paths[0], token_files, "--against", paths[1])
    assert "--against needs --target" in refused(*line, "--runs", 3)
    line += ["--target", 3.3]  # equal losses have no test
    refused(*line, "--runs", 2)
    said = told(*line, "--runs", 3, code=3)
    sides = [[run["submission_sha256"] for run in said[side]["runs"]] for side in ("submission", "record")]
    assert [len({*side}) for side in sides] == [1, 1] and sides[0] != sides[1]
    one, other = sides[0][0], sides[1][0]
    assert judge.examined == [one, other, other, one, one, other] and said["ratio"]["runs_slow"] == 3


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("row = 3", "no limit 'row'. Did you mean rows?"),
        ("rows = 7", "rows is 7, not a number of at least 8"),
        ("rows = 8.5", "rows is 8.5, not a number"),
        ("margin = 0", "margin is 0, not above 0"),
        ("late_seconds = nan", "late_seconds is nan, not above 0"),
        ("processes = true", "processes is True, not"),
        ("scratch = 3", "scratch is 3, not a text"),
        ("rows", "Nothing was run"),
    ],
)
def test_limits_that_are_none_are_refused_with_the_file(content, why, token_files, tmp_path, refused):
    (limits := tmp_path / "limits.toml").write_text(content)
    said = refused(*command(tmp_path, token_files, "--limits", limits))
    assert f"{limits}: " in said and why in said
