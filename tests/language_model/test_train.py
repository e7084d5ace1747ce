"""BERT runs: baseline and methods train the same model, and accuracy counts every masked token once."""

import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from judging.ground.errors import UsageError
from language_model import SPEC
from language_model.batches import TextBatches, open_batches
from language_model.build import build_model
from language_model.configs import CPU_SPEED_UPS, BertRunConfig
from language_model.datasets import CHECKPOINT
from language_model.prepare import prepare
from language_model.settings import SpeedUps
from language_model.train import accuracy, train
from mlevents import keys, mlcommons, record
from mlevents.checks.log_check import check
from mlevents.runlog import RunLog
from tests.language_model.transformers_names import weights_of
from timedrun.distributed.process_group import ProcessGroup
from timedrun.distributed.stop_signals import ShutdownRequest
from timedrun.run import checkpoint_file
from timedrun.run.blocks import Outcome
from timedrun.run.progress import Progress
from timedrun.run.timed_run import TimedRun
from timedrun.training.precision import Precision

safetensors = pytest.importorskip("safetensors.torch", reason="needs timedrun[language]")

ALONE = ProcessGroup(0, 1, 0, torch.device("cpu"))


def run_of(config: BertRunConfig, store: Path, log: RunLog, **options: Any) -> TimedRun:
    progress = Progress("test", shown=False)
    return TimedRun(config, SPEC, ALONE, log, platform="1xCPU", progress=progress, data_folder=store, **options)


@pytest.fixture
def losses_of(tiny_store: Path, step_losses: list[float]) -> Callable[[BertRunConfig], list[float]]:
    """Return a function that runs a config and returns the loss of every step."""

    def losses(config: BertRunConfig) -> list[float]:
        step_losses.clear()
        with run_of(config, tiny_store, RunLog(None)) as run:
            train(config, run)
        return list(step_losses)

    return losses


@pytest.fixture
def methods(tiny_config: BertRunConfig) -> BertRunConfig:
    return replace(tiny_config, name="tiny_methods", implementation="timedrun", speed=CPU_SPEED_UPS)


def test_baseline_and_methods_have_the_same_loss_at_every_step(
    tiny_config: BertRunConfig, methods: BertRunConfig, losses_of: Callable[[BertRunConfig], list[float]]
) -> None:
    baseline = losses_of(tiny_config)
    assert len(baseline) == 20
    assert baseline[-1] < 0.9 * baseline[0]
    assert losses_of(methods) == pytest.approx(baseline, rel=1e-4)
    sdpa = replace(tiny_config, speed=SpeedUps(attention="sdpa"))
    assert losses_of(sdpa) == pytest.approx(baseline, rel=1e-4)


def test_warm_up_and_micro_batches_leave_the_losses_as_they_are(
    methods: BertRunConfig, losses_of: Callable[[BertRunConfig], list[float]]
) -> None:
    plain = losses_of(replace(methods, warm_up_steps=0))
    assert losses_of(replace(methods, warm_up_steps=2)) == plain
    assert losses_of(replace(methods, micro_batch=5)) == pytest.approx(plain, rel=1e-4)


def test_a_run_that_reaches_its_target_passes_both_checkers(
    methods: BertRunConfig, tiny_store: Path, tmp_path: Path
) -> None:
    config = replace(methods, evaluation=replace(methods.evaluation, target=0.01))
    path = tmp_path / "result_0.txt"
    with run_of(config, tiny_store, RunLog(path)) as run:
        train(config, run)
    assert run.outcome is Outcome.REACHED
    assert check(path, "2.1.0").passed
    assert mlcommons.check_log(path, "2.1.0").verdict == "pass"
    log = record.read(path)
    assert log.value("attention") == "sdpa_grouped"
    assert "unpadding" in [event.value for event in log.all(keys.METHOD)]
    assert [event.metadata["epoch_num"] for event in log.all(keys.EVAL_ACCURACY)] == [120]
    assert log.value(keys.TRAIN_SAMPLES) > 200


def test_accuracy_counts_every_masked_token_once_whatever_the_batch(
    tiny_config: BertRunConfig, tiny_store: Path
) -> None:
    model = build_model(tiny_config, torch.device("cpu"))
    precision = Precision("fp32", ALONE.device)

    def opened(eval_batch: int) -> TextBatches:
        data = replace(tiny_config.data, eval_batch=eval_batch)
        return open_batches(replace(tiny_config, data=data), tiny_store, ALONE)

    whole = accuracy(model, opened(10_000), precision, ALONE)
    assert whole == accuracy(model, opened(7), precision, ALONE)
    (batch,) = opened(10_000).evaluation()
    assert whole == pytest.approx(int(model.count_correct(batch)) / len(batch.labels))


def test_an_evaluation_that_misses_sequences_is_an_error(
    tiny_config: BertRunConfig, tiny_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_of(tiny_config, tiny_store, RunLog(None)) as run:
        original = TextBatches.evaluation
        monkeypatch.setattr(TextBatches, "evaluation", lambda self: list(original(self))[:-1])
        with pytest.raises(RuntimeError, match="evaluation saw"):
            train(tiny_config, run)


def test_a_run_starts_from_the_checkpoint_in_its_store_and_logs_its_digest(
    methods: BertRunConfig, tiny_store: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    shutil.copytree(tiny_store, store)
    (store / CHECKPOINT).mkdir()
    trained = replace(methods, evaluation=replace(methods.evaluation, target=0.01))
    other = build_model(replace(trained, seed=77), torch.device("cpu"))
    safetensors.save_file(weights_of(other), store / CHECKPOINT / "model.safetensors")
    config = replace(trained, start="checkpoint")
    found = prepare(config, store, decode=True, workers=1)
    assert found["checkpoint_parameters"] == sum(tensor.numel() for tensor in weights_of(other).values())
    assert not found["checkpoint_is_mlperfs"]
    with run_of(config, store, RunLog(tmp_path / "result_0.txt")) as run:
        train(config, run)
    assert record.read(tmp_path / "result_0.txt").value("initial_weights") == found["checkpoint_sha256"]
    data = open_batches(config, store, ALONE)
    assert found["checkpoint_accuracy"] == accuracy(other, data, Precision("fp32", ALONE.device), ALONE)


def test_a_resumed_run_has_the_losses_and_accuracy_of_an_uninterrupted_one(
    methods: BertRunConfig,
    tiny_store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step_losses: list[float],
) -> None:
    stop = ShutdownRequest()
    original: Callable[..., None] = TimedRun.step_done

    def step_done(self: TimedRun, samples: int, loss: Tensor) -> None:
        if self.position.step == 6 and self.stop is stop:
            stop.signal = signal.SIGTERM
        original(self, samples, loss)

    monkeypatch.setattr(TimedRun, "step_done", step_done)
    with run_of(methods, tiny_store, RunLog(tmp_path / "whole.txt")) as run:
        train(methods, run)
    whole = list(step_losses)
    step_losses.clear()
    log = RunLog(tmp_path / "result_0.txt")
    with run_of(methods, tiny_store, log, stop=stop, checkpoints=tmp_path / "checkpoint") as run:
        train(methods, run)
    assert run.outcome is Outcome.STOPPED
    state = checkpoint_file.load(tmp_path / "checkpoint" / "rank_0" / "step_00000007.pt")
    log = RunLog.resume(tmp_path / "result_0.txt", keep_in=tmp_path, **state["log"])
    with run_of(methods, tiny_store, log, resume_from=state) as run:
        train(methods, run)
    assert step_losses == whole
    values = [
        [event.value for event in record.read(tmp_path / name).all(keys.EVAL_ACCURACY)]
        for name in ("whole.txt", "result_0.txt")
    ]
    assert values[0] == values[1] and len(values[0]) == 2


def test_row_multiple_changes_no_loss(
    methods: BertRunConfig, losses_of: Callable[[BertRunConfig], list[float]]
) -> None:
    plain = losses_of(methods)
    for backend in ("sdpa_grouped", "sdpa_padded", "sdpa_loop", "eager"):
        for multiple in (2, 128):  # 2: about half of the batches need no filling
            speed = replace(methods.speed, attention=backend, row_multiple=multiple)
            assert losses_of(replace(methods, speed=speed)) == pytest.approx(plain, rel=1e-4), (backend, multiple)


def test_contradicting_settings_are_refused_without_preflight(tiny_config: BertRunConfig, tiny_store: Path) -> None:
    config = replace(tiny_config, speed=SpeedUps(fused_qkv=True))
    with run_of(config, tiny_store, RunLog(None)) as run, pytest.raises(UsageError, match="has no fused_qkv"):
        train(config, run)


def test_dropout_follows_the_seed(methods: BertRunConfig, losses_of: Callable[[BertRunConfig], list[float]]) -> None:
    config = replace(methods, architecture=replace(methods.architecture, dropout=0.1))
    first = losses_of(config)
    torch.manual_seed(123)
    assert losses_of(config) == first
    assert losses_of(replace(config, seed=2)) != first
