"""A result belongs to one run, and the runs of a folder are one set: equal configs, a seed each. Of several launches at
once one gets a result, and nobody writes one that is being written."""

import json
import re
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from judging.ground import ledger, result_files
from judging.ground.config_values import digest_of
from judging.ground.errors import TimedrunError
from judging.ground.result_files import ResultPaths
from mlevents import keys, record
from mlevents.rounds.own_rules import as_recorded, benchmark_rules
from mlevents.runlog import RunLog
from tests.timedrun.runner.distributed.thread_ranks import in_threads
from tests.timedrun.runner.run.killed_run import ALONE
from timedrun.evidence.submission.packaging.result_folder import json_object
from timedrun.evidence.submission.reproduction.claims import read_claims
from timedrun.methods import EMA
from timedrun.runner.config import digest, dump
from timedrun.runner.provenance.system_answers import read_answers
from timedrun.runner.run import worker
from timedrun.runner.run.result_set import next_seed, other_config, other_rules
from timedrun.runner.run.worker import LaunchOptions


def test_one_of_many_launches_gets_the_result_and_others_change_nothing(tmp_path, toy_config):
    (tmp_path / "result_0.txt").write_text("precious")
    with pytest.raises(FileExistsError):
        worker.claim(toy_config(), LaunchOptions(paths=ResultPaths(tmp_path, 0)), ALONE, "1xCPU")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("result_0.txt", "precious")]
    options = LaunchOptions(paths=ResultPaths(tmp_path / "results", 0))
    begin = threading.Barrier(8)

    def claim(number: int) -> object:
        begin.wait()
        return worker.claim(toy_config(), options, ALONE, "1xCPU")

    outcomes = in_threads(8, claim)
    refused = [str(outcome) for outcome in outcomes if isinstance(outcome, FileExistsError)]
    assert len(refused) == 7 and sum(isinstance(outcome, Exception) for outcome in outcomes) == 7
    assert all("another run has this number" in words for words in refused)
    assert [event.key for event in record.read(options.paths.log).events] == [keys.LEDGER_ENTRY]
    assert len(ledger.parse((options.paths.folder / ledger.LEDGER).read_bytes()).runs) == 1
    assert result_files.read_json(options.paths.config)["benchmark"] == "toy"


def test_of_two_runs_that_chose_one_seed_the_second_to_claim_is_refused(tmp_path, toy_config):
    first, second = (LaunchOptions(paths=ResultPaths(tmp_path, number), seed_of_first=True) for number in range(2))
    worker.claim(toy_config(), first, ALONE, "1xCPU").close()
    with pytest.raises(TimedrunError, match=r"run_0 already has seed 1.*\(--seed 2\)"):
        worker.claim(toy_config(), second, ALONE, "1xCPU")
    assert not second.paths.side.exists()
    worker.claim(toy_config(), replace(second, seed_of_first=False), ALONE, "1xCPU").close()


@pytest.mark.processes
def test_a_result_that_another_process_writes_is_not_taken_and_is_free_when_that_ends(tmp_path):
    paths = ResultPaths(tmp_path, 0)
    paths.side.mkdir()
    paths.environment.touch()
    other = (
        "import sys\nfrom pathlib import Path\nfrom judging.ground.result_files import ResultPaths, hold\n"
        f"hold(ResultPaths(Path({str(tmp_path)!r}), 0))\nprint('held', flush=True)\nsys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", other], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError, match="another process is still writing this result"):
            result_files.hold(paths)
    finally:
        process.kill()
        process.communicate()
    result_files.hold(paths)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "a number has too many digits"),
        (b'{"a": "\xff"}', "byte 7 is not UTF-8"),
        (b'{"a": }', "Expecting value: line 1 column 7"),
    ],
    ids=["deep", "digits", "bytes", "syntax"],
)
@pytest.mark.parametrize(
    "reader",
    [result_files.read_json, read_answers, read_claims, lambda path: json_object(path, {path: path.read_bytes()})],
    ids=["config", "answers", "claims", "package"],
)
def test_unreadable_json_is_described_without_the_interpreters_limits(tmp_path, reader, content, why):
    path = tmp_path / "some.json"
    path.write_bytes(content)
    if reader is read_claims and why.startswith("a number"):
        why = "not a list of claims"  # which keep numbers as text
    with pytest.raises(TimedrunError, match=re.escape(why)) as raised:
        reader(path)
    assert not re.search("recursion|set_int|codec", str(raised.value))


def keep(folder: Path, number: int, text: str) -> None:
    (folder / f"run_{number}").mkdir(parents=True)
    (folder / f"run_{number}" / "config.json").write_text(text)


def test_the_next_seed_is_the_configs_own_or_the_lowest_that_no_run_has(tmp_path, toy_config):
    assert next_seed(toy_config(), tmp_path / "none") == 1
    assert next_seed(toy_config(seed=7), tmp_path) == 7
    for number, seed in enumerate((1, 2, 4)):
        keep(tmp_path, number, json.dumps(dump(toy_config(seed=seed))))
    keep(tmp_path, 8, "{")
    keep(tmp_path, 9, "[]")
    assert next_seed(toy_config(), tmp_path) == 3
    assert next_seed(toy_config(seed=4), tmp_path) == 3
    assert next_seed(toy_config(seed=5), tmp_path) == 5


def test_another_config_is_named_with_both_digests_and_the_settings(tmp_path, toy_config):
    config = toy_config()
    assert digest_of(json.loads(json.dumps(dump(config)))) == digest(config)
    keep(tmp_path, 3, json.dumps(dump(replace(config, seed=9))))
    assert other_config(config, tmp_path) == "" == other_config(config, tmp_path / "none")
    other = replace(config, global_batch=8, methods=(EMA(),))
    words = other_config(other, tmp_path)
    for part in ("run_3", digest(config)[:16], digest(other)[:16], "global_batch 4 there and 8 here", "methods.ema"):
        assert part in words
    assert "differ in name or notes" in other_config(replace(config, name="toy_mine"), tmp_path)


def test_a_folder_of_runs_by_other_rules_is_named_with_the_difference(tmp_path):
    rules = benchmark_rules("wine", dataset="wine", metric="accuracy", target=0.9)
    assert other_rules(rules, tmp_path) == ""
    with closing(RunLog(tmp_path / "result_0.txt", durable=False)) as log:
        log.event(keys.SUBMISSION_BENCHMARK, "wine")
        log.event(keys.BENCHMARK_RULES, as_recorded(rules))
    assert other_rules(rules, tmp_path) == "" == other_rules(None, tmp_path)
    assert "they differ in target 0.9 there and 0.8 here" in other_rules(replace(rules, target=0.8), tmp_path)
