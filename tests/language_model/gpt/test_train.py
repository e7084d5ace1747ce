"""GPT runs: warm-up leaves no trace, the clock starts before data is read, accumulation, methods, validation loss."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from language_model.gpt import attention_mask, model, run_config, warm_up
from language_model.gpt.batches import open_batches
from language_model.gpt.configs import shakespeare_modern
from language_model.gpt.datasets import facts
from language_model.gpt.model import NextTokenLoss, token_losses
from language_model.gpt.settings import GptDataConfig
from language_model.gpt.token_store import TokenStore
from language_model.gpt.train import validation_loss
from language_model.model import import_transformers
from mlevents import keys, record
from mlevents.runlog import RunLog
from tests.language_model.gpt.conftest import whole
from tests.one_rank import ALONE, CPU, stopped, trained
from timedrun.methods.alibi import ALiBi
from timedrun.methods.gradient_clipping import GradientClipping
from timedrun.methods.sequence_length_warmup import SequenceLengthWarmup
from timedrun.methods.training.batch_plan import BatchPlan
from timedrun.methods.training.precision import Precision
from timedrun.runner.benchmark import find
from timedrun.runner.config import EvaluationConfig
from timedrun.runner.distributed.process_group import ProcessGroup
from timedrun.runner.run import kept_model

FOUR = BatchPlan.of(4, 0, 1)
Losses = Callable[..., list[float]]


@pytest.fixture
def losses_of(store: TokenStore, losses_on: Losses) -> Losses:
    """Return a function that runs a config on `store` and returns the loss of every step."""
    return partial(losses_on, folder=store.folder)


@pytest.mark.parametrize("implementation", ["gpt2", "modern"])
def test_a_kept_model_has_the_logits_of_the_trained_one_and_of_transformers(implementation, small, store, tmp_path):
    config = small({"implementation": implementation})
    run, benchmark = trained(config, data_folder=store.folder), find(config.benchmark)
    kept_model.write(kept_model.evaluated_weights(run.train_state.parts), benchmark, config, tmp_path / "model")
    tokens = torch.randint(config.model.vocabulary, (2, 16))
    trained_model = run.train_state.parts["model"]
    assert isinstance(trained_model, torch.nn.Module)
    expected = trained_model.eval()(tokens)
    assert torch.equal(kept_model.load_model(tmp_path / "model")(tokens), expected)
    theirs = tmp_path / "model" / "transformers"
    assert theirs.exists() == (implementation == "gpt2")
    if theirs.exists():
        logits = import_transformers("gpt2").GPT2LMHeadModel.from_pretrained(theirs).eval()(tokens).logits
        torch.testing.assert_close(logits, expected)


def test_a_run_starts_at_the_loss_of_random_guessing_learns_and_has_the_same_losses_by_warm_up_and_micro_batches(
    small, losses_of, store
):
    without = losses_of(small({"dropout": 0.1}, warm_up_steps=0))
    assert len(without) == 12 and without == losses_of(small({"dropout": 0.1}, warm_up_steps=3))
    for implementation in ("gpt2", "modern"):
        losses = losses_of(small({"implementation": implementation}))
        assert losses[0] == pytest.approx(math.log(store.manifest.vocabulary), abs=0.1)
        assert losses[-1] < losses[0] - 0.3
    assert losses_of(small(micro_batch=3)) == pytest.approx(losses, rel=1e-5)


def test_a_resumed_run_has_the_losses_of_an_uninterrupted_one(small, losses_of, store, tmp_path):
    """By Muon; the sharded run and that of a growing window resume AdamW."""
    warmup = SequenceLengthWarmup(steps=12, duration=0.5, min_length=4, max_length=16, step_size=4)
    optimizer = shakespeare_modern().optimizer
    config = small({"dropout": 0.1}, methods=(warmup,), optimizer=optimizer, warm_up_steps=1)
    whole = losses_of(config)
    state = stopped(config, 5, tmp_path, data_folder=store.folder)
    torch.manual_seed(99)
    assert losses_of(config, resume_from=state) == whole[5:]


def test_the_window_of_attention_grows_with_the_steps_and_a_resumed_run_has_the_same(
    small, losses_of, store, tmp_path, monkeypatch
):
    windows: list[int] = []
    original: Callable[..., Any] = attention_mask.attention_mask

    def mask(tokens: torch.Tensor, *, window: torch.Tensor, end_of_text: int | None) -> Any:
        windows.append(int(window))
        return original(tokens, window=window, end_of_text=end_of_text)

    monkeypatch.setattr(run_config, "WINDOW_INCREMENT", 4)
    monkeypatch.setattr(model, "attention_mask", mask)
    config = small({"attention_window": 12, "document_attention": True}, window_warmup_steps=8, warm_up_steps=0)
    assert not config.problems()
    config = replace(config, evaluation=EvaluationConfig(target=0.01, every=16, first=16), data=GptDataConfig())
    whole = losses_of(config)
    batches = len(list(open_batches(config, store.folder, ALONE).evaluation()))
    assert windows == [4, 4, 4, 4] + [8] * batches + [8] * 4 + [12] * batches + [12] * 4 + [12] * batches
    state = stopped(config, 5, tmp_path, data_folder=store.folder)
    assert losses_of(config, resume_from=state) == whole[5:]


def test_gradients_are_clipped_together(small, losses_of, monkeypatch):
    norms: list[float] = []
    original: Callable[..., Any] = torch.optim.AdamW.step

    def step(self: torch.optim.AdamW, *arguments: Any) -> Any:
        gradients = [p.grad for group in self.param_groups for p in group["params"]]
        norms.append(float(torch.cat([g.flatten() for g in gradients if g is not None]).norm()))
        return original(self, *arguments)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    clipped = losses_of(small(clip_norm=0.01, warm_up_steps=0))
    assert norms == pytest.approx([0.01] * 12, rel=1e-3)
    method = GradientClipping(threshold=0.01)
    assert losses_of(small(clip_norm=0.0, methods=(method,), warm_up_steps=0)) == clipped


def test_alibi_and_sequence_length_warmup_act(small, store, monkeypatch):
    warmup = SequenceLengthWarmup(steps=12, duration=0.5, min_length=2, max_length=8, step_size=2)
    shapes: list[tuple[int, int]] = []

    def seen(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            shapes.append((targets.shape[0], targets.shape[1]))
        return token_losses(logits, targets)

    monkeypatch.setattr("language_model.gpt.model.token_losses", seen)
    methods = (ALiBi(train_sequence_length_scaling=0.5), warmup)
    config = small({"implementation": "gpt2"}, methods=methods, warm_up_steps=0)
    trained(config, data_folder=store.folder)
    assert shapes == [(8, 2)] * 2 + [(8, 4)] * 2 + [(8, 6)] * 2 + [(8, 8)] * 6
    shapes.clear()
    trained(replace(config, micro_batch=1), data_folder=store.folder)  # 16 tokens at a time
    assert shapes[:2] == [(8, 2), (8, 2)] and shapes[-4:] == [(2, 8)] * 4


def test_warm_up_covers_every_shape_of_the_run_and_an_evaluation(small):
    warmup = SequenceLengthWarmup(steps=12, duration=0.5, min_length=2, max_length=8, step_size=2)
    config = small(methods=(warmup,), warm_up_steps=1)
    training = list(warm_up.train_batches(config, ALONE, FOUR))
    assert [batch.inputs.shape for batch in warm_up.evaluation_batches(config, ALONE)] == [(64, 16)]
    assert [min(16, warmup.length(number / 12)) for number, _ in training] == [8, 6, 4, 2]
    assert list(warm_up.train_batches(replace(config, warm_up_steps=0), ALONE, FOUR)) == []


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_the_validation_loss_is_the_mean_over_all_tokens(small, store, world_size):
    known = facts(store.folder, 16)
    table = torch.nn.Embedding(known.vocabulary, known.vocabulary)

    class Summed(ProcessGroup):
        sums = torch.zeros(2, dtype=torch.float64)

        def all_reduce_sum(self, values: torch.Tensor) -> torch.Tensor:
            self.sums.add_(values)
            return self.sums

    config = small(global_batch=6, data=GptDataConfig(eval_batch=5))
    Summed.sums.zero_()
    value = 0.0
    for rank in range(world_size):
        ranks = Summed(rank, world_size, rank, CPU)
        data = open_batches(config, store.folder, ranks)
        expected = known.eval_tokens if rank == world_size - 1 else -1
        if expected > 0:
            value = validation_loss(NextTokenLoss(table), data, Precision("fp32", CPU), ranks, expected)
        else:
            with pytest.raises(RuntimeError, match="no loss was recorded"):
                validation_loss(NextTokenLoss(table), data, Precision("fp32", CPU), ranks, expected)
    tokens = torch.tensor(whole(store.tokens("validation")).astype("int64"))
    logs = table(tokens[:-1]).double().log_softmax(1)
    assert value == pytest.approx(-logs.gather(1, tokens[1:, None]).mean().item(), rel=1e-5)


def test_run_start_is_on_disk_before_a_token_is_read(small, store, tmp_path, monkeypatch):
    path = tmp_path / "result_0.txt"

    def refuse(*arguments: Any) -> None:
        assert record.read(path).started is not None
        raise OSError("no data today")

    monkeypatch.setattr(TokenStore, "tokens", refuse)
    with pytest.raises(OSError, match="no data today"):
        trained(small(), RunLog(path), data_folder=store.folder)
    assert record.read(path).status == keys.ABORTED
