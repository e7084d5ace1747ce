"""MLPerf logs that a trainer writes itself: both checkers pass them, and mistakes are told before or at once."""

import os
import re
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from judging.ground.errors import TrainingLoopError, UsageError
from judging.scoring.score import score
from mlevents import keys, mlcommons
from mlevents.checks.log_check import check
from mlevents.record import read
from mlevents.rounds import ruleset
from mlevents.runlog.trainer_run import COURSE, MLPerfRun, mlperf_preflight, mlperf_run
from tests.mlevents.rounds import rule_files
from tests.mlevents.rounds.synthetic_logs import log_of

CASES = [("bert", "2.1", "open", None), ("resnet", "4.0", "closed", "lars"), ("llama31_8b", "6.1", "closed", "adamw")]


def settings_of(benchmark: str, round_: str, division: str, optimizer: str | None = None) -> dict[str, Any]:
    """Settings that the round allows."""
    name = f"{round_}.0"
    log = log_of(name, benchmark, division, optimizer)
    settings = {record["key"]: record["value"] for record in log if record["key"] not in COURSE}
    if keys.WEIGHTS_INITIALIZATION in settings:
        settings[keys.WEIGHTS_INITIALIZATION] = rule_files.tensors(name, benchmark)
    if benchmark == "llama31_8b":
        settings |= {keys.OPT_BASE_LR: 1e-3, keys.OPT_END_LR: 1e-4, keys.GRADIENT_ACCUMULATION_STEPS: 1}
        settings |= {keys.GLOBAL_BATCH_SIZE: 64, keys.MICRO_BATCH_SIZE: 1}
    return {keys.GLOBAL_BATCH_SIZE: 64, **settings}


@pytest.fixture
def resnet(tmp_path: Path) -> dict[str, Any]:
    """Arguments of an open ResNet run."""
    settings = settings_of("resnet", "2.0", keys.OPEN)
    return {"benchmark": "resnet", "round": "2.0", "out": tmp_path / "result_0.txt", **settings}


@pytest.mark.parametrize(("benchmark", "round_", "division", "optimizer"), CASES)
def test_a_log_passes_mlcommons_checker_and_the_strict_checks(tmp_path, benchmark, round_, division, optimizer):
    path, now = tmp_path / "result_0.txt", 100.0
    settings = settings_of(benchmark, round_, division, optimizer)
    run = MLPerfRun(benchmark, ruleset(f"{round_}.0"), path, settings, monotonic=lambda: now)
    every = run.benchmark.evaluation_interval.at(settings[keys.GLOBAL_BATCH_SIZE])
    reaching = run.target * (1.001 if run.benchmark.direction == ">=" else 0.999)
    missing = run.target * (0.9 if run.benchmark.direction == ">=" else 1.1)
    with run, warnings.catch_warnings():
        warnings.simplefilter("error")
        run.start()
        for number, value in enumerate((missing, missing, reaching), start=1):
            now += 3600
            run.evaluating(**{run.benchmark.unit: number * every})
            now += 60
            assert run.evaluated(value) is (value == reaching)
    verdict = mlcommons.check_logs([path], f"{round_}.0")[0]
    assert (verdict.verdict, verdict.messages) == ("pass", ())
    report = check(path, f"{round_}.0")
    wrong = [finding for finding in report.findings if finding.level == "error"]
    assert not wrong and report.summary.minutes == pytest.approx(3 * 61)
    findings = mlperf_preflight(benchmark, round=round_, out=tmp_path / "result_1.txt", **settings)
    assert not [finding for finding in findings if finding.level == "error"]


def test_all_missing_and_unknown_settings_are_told_at_once_and_no_log_is_begun(resnet):
    del resnet["train_samples"], resnet["submission_org"]
    resnet |= {"global_bach_size": 3, "seed": 1.5, "submission_status": "here", "eval_samples": object()}
    with pytest.raises(UsageError) as error:
        mlperf_run(**resnet)
    for said in (
        "train_samples is missing: samples of the training set",
        "submission_org is missing: name of the organization",
        "global_bach_size is no setting of a log. Did you mean global_batch_size?",
        "seed is 1.5",
        "eval_samples is builtins.object",
        "submission_status is 'here', not one of cloud, onprem",
    ):
        assert said in str(error.value)
    assert not resnet["out"].exists()


@pytest.mark.parametrize(("name", "said"), [("benchmark", "Did you mean resnet?"), ("round", "known: ")])
def test_an_unknown_benchmark_or_round_is_refused(resnet, name, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        mlperf_run(**resnet | {name: "resnets"})


@pytest.mark.parametrize("begin", [mlperf_run, mlperf_preflight])
def test_a_result_is_never_overwritten(resnet, begin):
    resnet["out"].write_text("a result")
    with pytest.raises(FileExistsError):
        begin(**resnet)
    assert resnet["out"].read_text() == "a result"


def ending(path: Path) -> tuple[Any, Any]:
    stop = read(path).last(keys.RUN_STOP)
    return stop.metadata["status"], stop.metadata.get("reason")


def test_a_run_that_a_signal_ends_is_aborted_and_dies_of_the_signal(resnet):
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with mlperf_run(**resnet) as run:
            run.start()
            os.kill(os.getpid(), signal.SIGTERM)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGTERM
    assert ending(resnet["out"]) == ("aborted", "interrupted by SIGTERM")


def test_a_signal_to_a_forked_worker_neither_writes_to_the_log_nor_ends_the_run(resnet):
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with mlperf_run(**resnet) as run:
        run.start()
        if (pid := os.fork()) == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGTERM
        assert run.evaluated(0.76, epoch=4)
    assert ending(resnet["out"]) == ("success", None) and len(read(resnet["out"]).all(keys.RUN_STOP)) == 1
    assert signal.signal(signal.SIGTERM, before) is signal.SIG_DFL


def test_an_evaluation_elsewhere_than_the_rules_say_is_told_at_once(tmp_path):
    settings = settings_of("llama31_8b", "6.1", keys.CLOSED)
    with mlperf_run("llama31_8b", round="6.1", out=tmp_path / "result_0.txt", **settings) as run:
        run.start()
        with (
            pytest.warns(UserWarning, match="evaluated only once"),
            pytest.warns(UserWarning, match="20000 samples between two evaluations; the closed division requires"),
        ):
            run.evaluated(5.0, samples=20_000)


def test_progress_in_another_unit_or_backward_is_refused(resnet):
    with mlperf_run(**resnet) as run:
        run.start()
        with pytest.raises(TrainingLoopError, match="counted in epoch=, not samples"):
            run.evaluated(0.1, samples=4)
        run.evaluating(epoch=4)
        run.evaluated(0.1)
        with pytest.raises(TrainingLoopError, match="epoch=4 is no progress"):
            run.evaluated(0.1, epoch=4)


def test_nothing_is_logged_after_the_target(resnet):
    with mlperf_run(**resnet) as run:
        run.start()
        run.block(epoch=2)
        assert run.evaluated(0.7594, epoch=4)
        size = resnet["out"].stat().st_size
        assert run.evaluated(0.1, epoch=8) and run.ended
    assert ending(resnet["out"]) == ("success", None)
    assert resnet["out"].stat().st_size <= size


def test_another_rank_writes_nothing_and_knows_the_end(resnet, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with mlperf_run(**resnet) as run:
        run.start()
        assert run.evaluated(0.7594, epoch=4) and run.ended
    assert not resnet["out"].exists()


def test_a_demonstration_has_a_target_of_its_own(resnet):
    resnet |= {"dataset": "digits", "train_samples": 1437, "eval_samples": 360}
    with pytest.raises(UsageError, match="quality_target is missing"):
        mlperf_run(**resnet)
    with mlperf_run(**resnet, quality_target=0.5) as run:
        run.start()
        assert run.evaluated(0.6, epoch=1)


@pytest.mark.parametrize("value", [79.2, 1.01, -0.5])
def test_a_value_that_the_metric_cannot_have_is_told_and_reaches_no_target(resnet, value):
    with mlperf_run(**resnet) as run:
        run.start()
        assert not run.evaluated(0.5, epoch=4) and not run.evaluated(0.6, epoch=8)
        with pytest.warns(UserWarning, match=f"{value:g}, not a number from 0 to 1"):
            assert not run.evaluated(value, epoch=12)
    assert ending(resnet["out"])[0] == "aborted" and f"{value:g}, not a number" in ending(resnet["out"])[1]
    demonstration = resnet | {"dataset": "digits", "train_samples": 1437, "eval_samples": 360, "quality_target": 95}
    with pytest.raises(UsageError, match="quality_target is 95: the number .*at most 1"):
        mlperf_run(**demonstration)


def test_a_run_names_its_round_and_leaves_no_block_open(resnet):
    settings = settings_of("resnet", "4.0", keys.OPEN)
    with mlperf_run("resnet", round="4.0", out=resnet["out"], **settings) as run:
        run.start()
        run.evaluated(0.5, epoch=4)
    report = check(resnet["out"])
    assert report.ruleset == "4.0.0" and "pairs" not in [finding.rule for finding in report.findings]
    assert score([resnet["out"]])[0].ruleset == "4.0.0"
    resnet["out"].write_text(resnet["out"].read_text().replace('"value": "4.0.0"', '"value": "9.9.0"'))
    assert check(resnet["out"]).ruleset == "none"


@pytest.mark.parametrize(("round_", "benchmark"), [("3.0", "maskrcnn"), ("3.1", "stable_diffusion")])
def test_other_data_are_refused_where_one_target_cannot_judge_the_quality(tmp_path, round_, benchmark):
    settings = settings_of(benchmark, round_, keys.OPEN) | {"dataset": "toy", "quality_target": 0.2}
    with pytest.raises(UsageError, match="one quality_target cannot judge a quality of"):
        mlperf_run(benchmark, round=round_, out=tmp_path / "result_0.txt", **settings)


def test_the_benchmarks_own_data_are_known_in_any_case_of_letters(resnet):
    assert mlperf_run(**resnet, dataset="ImageNet").target == ruleset("2.0.0").benchmarks["resnet"].target


def test_the_log_is_found_from_another_working_folder_and_takes_numpys_numbers(resnet, monkeypatch, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    numbers = {"train_samples": np.int64(1_281_167), "opt_base_learning_rate": np.float32(0.5)}
    with mlperf_run(**resnet | numbers | {"out": "result_0.txt"}) as run:
        monkeypatch.chdir(tmp_path / "elsewhere")
        run.start()
        run.evaluated(0.7, epoch=np.float32(0.5))
        assert run.evaluated(0.76, epoch=1)
    report = check(resnet["out"])
    assert not [finding for finding in report.findings if finding.level == "error"]


def test_preflight_finds_what_the_rules_forbid_imagines_no_quality_above_1_and_keeps_nothing(resnet):
    findings = mlperf_preflight(**resnet | {"train_samples": 1000})
    assert [finding.rule for finding in findings if finding.level == "error"] == ["dataset-size"]
    resnet |= {"dataset": "digits", "train_samples": 1437, "eval_samples": 360}
    assert not [f for f in mlperf_preflight(**resnet, quality_target=0.9995) if f.rule == "quality-range"]
    assert list(resnet["out"].parent.iterdir()) == []
