"""Faults of files, options and answers are said in words and blame no submission; a killed referee leaves no folder."""

import io
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import psutil
import pytest

from judging.ground.errors import DataError, ExitCode, UsageError
from referee import contents
from referee.referee import Examination, Referee
from referee.series import Series
from referee.token_files import shards
from referee.verdict import Finding, Verdict
from tests.referee.submissions import HONEST, START


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


WHOLE = npy(np.arange(100, dtype=np.uint16))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        WHOLE[:9],
        WHOLE[:40],
        WHOLE[:-9],
        npy(np.array([{1: 2}, None], dtype=object)),
        npy(np.array([(1, 2)], dtype="i4,i4")),
        npy(np.zeros((3, 3), np.int32)),
        npy(np.array(["a"])),
        WHOLE.replace(b"(100,)", b"(-5,) "),
        WHOLE.replace(b"(100,)", b"(9**9)"),
        WHOLE.replace(b"(100,)", b"(100,("),
        WHOLE.replace(b"'shape'", b"'shade'"),
        WHOLE.replace(b"<u2", b"<q9"),
        b"PK\x03\x04" + bytes(90),
    ],
    ids=range(14),
)
def test_a_npy_file_that_holds_no_row_of_tokens_is_refused(content, tmp_path):
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.npy"):
        shards(tmp_path / "a.npy", "train")


def test_a_pipe_is_no_file_of_tokens(tmp_path):
    os.mkfifo(tmp_path / "a.npy")
    with pytest.raises(DataError, match="not a plain file"):
        shards(tmp_path, "train")


def test_a_file_name_that_is_no_text_is_a_name(tmp_path):
    (tmp_path / "submission.py").write_text("")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.py")).write_text("")
    files = contents.read(tmp_path, 1000)
    assert len(files) == 2 and len(contents.digest(files)) == 64


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (Examination(99_999_999_999, 32), r"--vocabulary 99,999,999,999: at most [0-9,]+ can be asked about"),
        (Examination(64, 32, fixed=(5, 64, 99)), r"--fixed 64 and 99: .* 64 ids, 0 to 63"),
    ],
)
def test_impossible_token_ids_are_refused_before_any_code_runs(settings, reason, token_files):
    with pytest.raises(UsageError, match=f"{reason}.*Nothing was run"):
        Referee(settings, token_files / "train.npy", token_files / "validation.npy", token_files)


@pytest.mark.processes
def test_a_device_that_the_machine_has_not_blames_no_script(token_files, tmp_path, answered):
    (tmp_path / "submission.py").write_text(HONEST)
    files = ["--train", token_files / "train.npy", "--validation", token_files / "validation.npy"]
    task = ["--vocabulary", 64, "--context", 32, "--no-sandbox", "--device", "cuda:63"]
    out, errors = answered("referee", tmp_path, *files, *task, code=2)
    assert "--device: cuda:63: " in errors and "rejected" not in out


FIT = (
    "    def forward(self, tokens):\n        logits = super().forward(tokens)\n        {}\n        return logits\n"
    "def build(task):\n    return Model(task.vocabulary)\n"
    "def train(model, task, shards):\n    model.train()\n    fit(model, task, shards, 5)\n"
)


def answers(change: str) -> str:
    """Return a submission that changes its logits when it is asked."""
    return f"{START}class Model(Bigram):\n{FIT.format(f'if not self.training: {change}')}"


@pytest.mark.processes
def test_a_probability_of_zero_for_a_token_that_occurred_is_said_in_words(examine):
    with warnings.catch_warnings(action="error"):
        verdict = examine(answers("logits[..., 5:] = float('-inf')"))
    (finding,) = verdict.failed
    assert finding.probe == "answers" and "probability 0 for a token that occurred" in finding.reason
    assert re.search(r"in \d+ of 48 rows", finding.reason)


@pytest.mark.processes
def test_a_loss_above_that_of_equal_probabilities_is_not_accepted(examine):
    verdict = examine(answers("logits = 26 * F.one_hot(tokens, 64).float()"))
    assert verdict.exit_code is ExitCode.TARGET_NOT_REACHED and verdict.loss > 20
    assert "equal probabilities have 4.1589" in verdict.sentence and not verdict.sentence.startswith("accepted")
    both = Series([verdict, verdict], None)
    assert both.exit_code is ExitCode.TARGET_NOT_REACHED and both.breach is None
    assert "equal probabilities have 4.1589" in both.sentence and both.sentence.startswith("rejected: mean loss")


def test_a_loss_that_misses_a_target_by_much_is_no_breach_of_a_series():
    missed = Verdict(
        "0" * 64, True, [Finding("target", False, "missed")], train_seconds=1.0, loss=9.0, standard_error=0.1
    )
    assert Series([missed], None).breach is None


START_REFEREE = """
import sys
from pathlib import Path
from referee.referee import Examination, Referee
from referee.sandbox import Sandbox
from referee.token_files import Text
folder, tokens = map(Path, sys.argv[1:])
data = tokens / "train.npy", tokens / "validation.npy", folder
Sandbox.wait = lambda _: None  # torch is being imported
opened = [Referee(Examination(64, 32), *data, isolated=isolated) for isolated in (True, False)]
Text.copies = lambda *_, **__: print("open", flush=True) or sys.stdin.read()
Referee(Examination(64, 32), *data)
"""


@pytest.mark.processes
@pytest.mark.usefixtures("referee")
def test_a_killed_referee_leaves_no_process_and_no_folder(token_files, tmp_path):
    """Of three: one in a sandbox and one without, which import torch, and one that writes its copies of the data."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", START_REFEREE, str(tmp_path), str(token_files)]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None and started.stdout.readline() == b"open\n"
        left = psutil.Process(started.pid).children(recursive=True)
        started.kill()
    assert len(left) > 4 and not psutil.wait_procs(left, timeout=20)[1]
    assert not [*tmp_path.iterdir()]
