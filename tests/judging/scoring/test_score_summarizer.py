"""Scores agree digit by digit with MLCommons' result_summarizer where the rules allow one."""

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from judging.scoring.score import Score, score

Both = tuple[dict[str, Score], dict[str, float | None]]

# What the tool finds for a package, by "system benchmark": minutes. It prints nothing that says it at once.
CHILD = """
import contextlib, functools, io, json, operator, sys
from mlperf_logging.result_summarizer import result_summarizer
result_summarizer.sum = lambda values: functools.reduce(operator.add, values)  # as before Python 3.12
found = {}
for folder, ruleset in zip(sys.argv[1::2], sys.argv[2::2]):
    with contextlib.redirect_stdout(io.StringIO()):
        rows = result_summarizer.summarize_results(folder, "training", ruleset)[2]
    for row in rows.to_dict("records"):
        for column, value in row.items():
            benchmark, _, what = column.partition(":")
            if what == "time_to_train":
                found[f"{row['system']} {benchmark}"] = float(value) if value is not None and value == value else None
print(json.dumps(found))
"""
SYSTEM = {
    **dict.fromkeys(["host_processor_model_name", "accelerator_model_name", "framework", "hw_notes", "sw_notes"], "x"),
    **dict.fromkeys(["host_processor_core_count", "host_processors_per_node"], "1"),
    **dict.fromkeys(["number_of_nodes", "accelerators_per_node"], "1"),
    "submitter": "Org",
    "status": "onprem",
}
CLOSED_BERT = dict.fromkeys(
    [
        *("gradient_accumulation_steps", "opt_base_learning_rate", "opt_lamb_epsilon", "opt_lamb_beta_1"),
        *("opt_learning_rate_training_steps", "opt_learning_rate_warmup_steps", "num_warmup_steps"),
        *("start_warmup_step", "opt_lamb_beta_2", "opt_lamb_weight_decay_rate"),
    ],
    1,
)


def summarized(*packages: tuple[Path, str]) -> dict[str, float | None]:
    """What the summarizer finds; the folders must be copies, since it writes into them."""
    command = [sys.executable, "-c", CHILD, *(str(word) for package in packages for word in package)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout))


class Package:
    """A package that grows by sets of runs of odd lengths."""

    def __init__(self, root: Path, write_run) -> None:
        self.root, self._write_run, self._random = root, write_run, random.Random(7)
        (root / "systems").mkdir(parents=True)

    def add(self, system, benchmark="resnet", runs=5, changes=None, **all_runs):
        """The folder of a new set; `changes` to its runs by number."""
        description = SYSTEM | {"system_name": system, "division": all_runs.get("submission_division", "open")}
        (self.root / "systems" / f"{system}.json").write_text(json.dumps(description))
        folder = self.root / "results" / system / benchmark
        for number in range(runs):
            minutes = self._random.randint(600_000, 900_000) / 60_000
            wanted = {"minutes": minutes, "platform": system, "benchmark": benchmark, "submission_org": "Org"}
            self._write_run(folder, number, **(wanted | all_runs | (changes or {}).get(number, {})))
        return folder


@pytest.fixture(scope="module")
def both(tmp_path_factory, write_run) -> Both:
    """Our scores and the summarizer's by "system benchmark"."""
    root = tmp_path_factory.mktemp("packages")
    package = Package(root / "training_results_v2.0" / "Org", write_run)
    package.add("plain")
    (package.add("one_unreadable") / "result_3.txt").write_bytes(b"")
    package.add("one_aborted", changes={2: {"status": "aborted"}})
    package.add("all_aborted", status="aborted")
    package.add("six_files", runs=6)
    package.add("four_files", runs=4)
    copies = package.add("copies")
    for number in range(1, 5):
        shutil.copy(copies / "result_0.txt", copies / f"result_{number}.txt")
    (package.add("open_scaled") / "scaling.json").write_text('{"scaling_factor": 0.5}')
    volume = package.add("volume", "unet3d", 40, qualities=(0.5, 0.95), changes={7: {"qualities": (0.1, 0.2)}})
    for number in (0, 11, 30):
        (volume / f"result_{number}.txt").write_bytes(b"")
    later = Package(root / "training_results_v5.0" / "Org", write_run)
    closed = {"qualities": (0.5, 0.6, 0.73), "submission_division": "closed", **CLOSED_BERT}
    (later.add("closed_scaled", "bert", 10, **closed) / "scaling.json").write_text('{"scaling_factor": 1.0043961}')
    copy = tmp_path_factory.mktemp("copy") / "round"
    shutil.copytree(root, copy)
    theirs = summarized(
        (copy / "training_results_v2.0" / "Org", "2.0.0"), (copy / "training_results_v5.0" / "Org", "5.0.0")
    )
    return {f"{one.system} {one.benchmark}": one for one in score([root])}, theirs


@pytest.mark.parametrize("name", ["plain resnet", "one_unreadable resnet", "closed_scaled bert"])
def test_the_digits_are_the_summarizers(both, name):
    ours, theirs = both
    assert ours[name].reason is None
    assert ours[name].score_minutes == theirs[name]


def test_closed_scaling_is_applied_and_open_scaling_is_not(both):
    ours, theirs = both
    closed, opened = ours["closed_scaled bert"], ours["open_scaled resnet"]
    assert closed.scaling_factor == 1.0043961 and closed.ruleset == "5.0.0"
    assert opened.scaling_factor is None and any("scaling.json (0.5) is ignored" in note for note in opened.notes)
    assert opened.score_minutes == 2 * (theirs["open_scaled resnet"] or 0)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("all_aborted", "5 of its 5 runs did not reach the target"),
        ("six_files", "it has 6 runs, and a submission of resnet has exactly 5"),
        ("four_files", "it has 4 runs, and a submission of resnet has exactly 5"),
        ("copies", "are identical files"),
    ],
)
def test_sets_that_the_rules_forbid_have_no_score(both, name, why):
    ours, theirs = (scores[f"{name} resnet"] for scores in both)
    assert theirs is not None
    assert ours.score_minutes is None and why in (ours.reason or "")
    assert not ours.fastest


def test_aborted_runs_are_the_slowest(both):
    ours, theirs = both
    aborted, volume = ours["one_aborted resnet"], ours["volume unet3d"]
    assert volume.reason is None
    assert aborted.slowest == ["result_2.txt"] and aborted.failures == {"result_2.txt": "was aborted"}
    assert aborted.score_minutes != theirs["one_aborted resnet"]
    # Three logs are unreadable, one missed its target; four may be dropped.
    assert {*volume.slowest} == {f"result_{number}.txt" for number in (0, 7, 11, 30)} and len(volume.fastest) == 4
    times = sorted(time for time in volume.runs if time is not None)
    assert volume.score_minutes == np.cumsum(times[4:])[-1] / 32
