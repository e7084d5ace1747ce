"""BERT runs: baseline and methods train the same model, and accuracy counts every masked token once."""

import shutil
from dataclasses import replace

import pytest
import torch

from language_model.batches import TextBatches, open_batches
from language_model.build import build_model
from language_model.configs import CPU_SPEED_UPS, BertRunConfig
from language_model.datasets import CHECKPOINT
from language_model.model import ReferenceBert, import_transformers
from language_model.prepare import prepare
from language_model.settings import SpeedUps
from language_model.train import accuracy, train
from mlevents import keys, mlcommons, record
from mlevents.checks.log_check import check
from mlevents.runlog import RunLog
from tests.language_model.transformers_names import weights_of
from tests.one_rank import ALONE, CPU, run_of, stopped, trained
from timedrun.methods.training.precision import Precision
from timedrun.runner.benchmark import find
from timedrun.runner.process.blocks import Outcome
from timedrun.runner.run import kept_model

safetensors = pytest.importorskip("safetensors.torch", reason="needs timedrun[language]")


@pytest.fixture
def methods(tiny_config: BertRunConfig) -> BertRunConfig:
    return replace(tiny_config, name="tiny_methods", implementation="timedrun", speed=CPU_SPEED_UPS)


def test_baseline_and_methods_have_the_same_loss_at_every_step(tiny_config, baseline_losses, methods, losses_of):
    assert len(baseline_losses) == 12 and baseline_losses[-1] < 0.9 * baseline_losses[0]
    sdpa = replace(tiny_config, speed=SpeedUps(attention="sdpa"))
    for config in (methods, sdpa):
        assert losses_of(config) == pytest.approx(baseline_losses, rel=1e-4)


def test_warm_up_and_micro_batches_leave_the_losses_as_they_are_and_dropout_follows_the_seed(
    methods, baseline_losses, losses_of
):
    assert losses_of(replace(methods, micro_batch=5)) == pytest.approx(baseline_losses, rel=1e-4)
    short = replace(methods, max_samples=48, evaluation=replace(methods.evaluation, every=48, first=48))
    config = replace(short, architecture=replace(methods.architecture, dropout=0.1))
    plain = losses_of(replace(config, warm_up_steps=0))
    torch.manual_seed(123)
    assert losses_of(replace(config, warm_up_steps=2)) == plain
    assert losses_of(replace(config, seed=2)) != plain


def test_a_run_at_its_target_passes_both_checkers(methods, tiny_store, tmp_path):
    config = replace(methods, evaluation=replace(methods.evaluation, target=0.01))
    path = tmp_path / "result_0.txt"
    run = trained(config, RunLog(path), data_folder=tiny_store)
    assert run.outcome is Outcome.REACHED
    assert check(path, "2.1.0").passed
    assert mlcommons.check_logs([path], "2.1.0")[0].verdict == "pass"
    log = record.read(path)
    assert log.value("attention") == "sdpa_grouped"
    assert "unpadding" in [event.value for event in log.all(keys.METHOD)]
    assert [event.metadata["epoch_num"] for event in log.all(keys.EVAL_ACCURACY)] == [72]
    assert log.value(keys.TRAIN_SAMPLES) > 200


def test_accuracy_counts_every_masked_token_once_in_any_batch(tiny_config, tiny_store):
    model = build_model(tiny_config, torch.device("cpu"))
    precision = Precision("fp32", ALONE.device)

    def opened(eval_batch: int) -> TextBatches:
        data = replace(tiny_config.data, eval_batch=eval_batch)
        return open_batches(replace(tiny_config, data=data), tiny_store, ALONE)

    whole = accuracy(model, opened(10_000), precision, ALONE)
    assert whole == accuracy(model, opened(7), precision, ALONE)
    (batch,) = opened(10_000).evaluation()
    assert whole == pytest.approx(int(model.count_correct(batch)) / len(batch.labels))


@pytest.mark.parametrize("implementation", ["transformers", "timedrun"])
def test_a_kept_model_has_the_accuracy_of_the_log_and_the_logits_of_transformers(
    implementation, tiny_config, methods, tiny_store, tmp_path
):
    config = tiny_config if implementation == "transformers" else methods
    run, benchmark = trained(config, data_folder=tiny_store), find(config.benchmark)
    kept_model.write(kept_model.evaluated_weights(run.train_state.parts), benchmark, config, tmp_path / "model")
    own, batches = kept_model.load_model(tmp_path / "model"), open_batches(config, tiny_store, ALONE)
    trained_model, precision = run.train_state.parts["model"], Precision("fp32", ALONE.device)
    assert accuracy(own, batches, precision, ALONE) == accuracy(trained_model, batches, precision, ALONE)  # type: ignore[arg-type]
    theirs = import_transformers().BertForMaskedLM.from_pretrained(tmp_path / "model" / "transformers").eval()
    tokens = torch.randint(config.architecture.vocabulary, (2, 8))
    again = ReferenceBert(config.architecture, "sdpa").eval()
    again.load_weights(weights_of(own) if implementation == "timedrun" else own.model.state_dict())  # type: ignore[union-attr,arg-type]
    torch.testing.assert_close(theirs(tokens).logits, again.model(tokens).logits)


def test_an_evaluation_that_misses_sequences_is_an_error(tiny_config, tiny_store, monkeypatch):
    with run_of(tiny_config, data_folder=tiny_store) as run:
        original = TextBatches.evaluation
        monkeypatch.setattr(TextBatches, "evaluation", lambda self: list(original(self))[:-1])
        with pytest.raises(RuntimeError, match="evaluation saw"):
            train(tiny_config, run)


def test_a_run_starts_from_the_checkpoint_in_its_store_and_logs_its_digest(methods, tiny_store, tmp_path):
    store = tmp_path / "store"
    shutil.copytree(tiny_store, store)
    (store / CHECKPOINT).mkdir()
    config = replace(methods, start="checkpoint", evaluation=replace(methods.evaluation, target=0.01))
    other = build_model(replace(config, start="random", seed=77), CPU)
    safetensors.save_file(weights_of(other), store / CHECKPOINT / "model.safetensors")
    found = prepare(config, store, decode=True, workers=1)
    assert found["checkpoint_parameters"] == sum(tensor.numel() for tensor in weights_of(other).values())
    assert not found["checkpoint_is_mlperfs"]
    trained(config, RunLog(tmp_path / "result_0.txt"), data_folder=store)
    assert record.read(tmp_path / "result_0.txt").value("initial_weights") == found["checkpoint_sha256"]
    data = open_batches(config, store, ALONE)
    assert found["checkpoint_accuracy"] == accuracy(other, data, Precision("fp32", ALONE.device), ALONE)


def test_a_resumed_run_has_the_losses_and_accuracy_of_an_uninterrupted_one(methods, tiny_store, tmp_path, step_losses):
    trained(methods, RunLog(tmp_path / "whole.txt"), data_folder=tiny_store)
    whole = list(step_losses)
    step_losses.clear()
    log = RunLog(tmp_path / "result_0.txt")
    state = stopped(methods, 7, tmp_path / "checkpoint", log, data_folder=tiny_store)
    log = RunLog.resume(tmp_path / "result_0.txt", keep_in=tmp_path, **state["log"])
    trained(methods, log, data_folder=tiny_store, resume_from=state)
    assert step_losses == whole
    logs = (record.read(tmp_path / name) for name in ("whole.txt", "result_0.txt"))
    expected, values = ([event.value for event in log.all(keys.EVAL_ACCURACY)] for log in logs)
    assert values == expected and len(values) == 2
