"""Sharded runs of two ranks have the losses of one, are resumed exactly, and refuse what needs whole weights."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from language_model.gpt.build import build
from language_model.gpt.configs import MUON, GptRunConfig
from language_model.gpt.datasets import facts
from language_model.gpt.run_info import run_info
from language_model.gpt.settings import GptDataConfig
from tests.one_rank import CPU, on_ranks, recorded_losses, stopped, trained
from timedrun.methods import EMA, SWA, SequenceLengthWarmup
from timedrun.runner.distributed.process_group import ProcessGroup

LLAMA = {"activation": "swiglu", "mlp_width": 26, "kv_heads": 1, "layers": 2, "zero_projections": False}


def train_twice(ranks: ProcessGroup, config: GptRunConfig, store: Path, folder: Path) -> None:
    """Train a whole run, and one that is stopped after step 2 and resumed; write the losses of both."""
    losses, options = recorded_losses(pytest.MonkeyPatch()), {"ranks": ranks}
    trained(config, data_folder=store, **options)
    state = stopped(config, 2, folder / "checkpoints", data_folder=store, **options)
    torch.manual_seed(99)
    trained(config, data_folder=store, resume_from=state, **options)
    (folder / f"losses_{ranks.rank}.json").write_text(json.dumps(losses))


@pytest.mark.processes
def test_two_sharded_ranks_have_the_losses_of_one_and_are_resumed_exactly(small, store, tmp_path, step_losses):
    config = small(LLAMA, micro_batch=1, warm_up_steps=1, data=GptDataConfig(eval_tokens=64))
    schedule, optimizer = replace(config.schedule, steps=4), replace(config.optimizer, peak_lr=3e-3)
    config = replace(config, schedule=schedule, optimizer=optimizer)
    trained(config, data_folder=store.folder)
    sharded = replace(config, sharding="full")
    on_ranks(2, tmp_path, train_twice, sharded, store.folder, tmp_path)
    ranks = [json.loads((tmp_path / f"losses_{rank}.json").read_text()) for rank in (0, 1)]
    assert len(step_losses) == 4
    mean = [sum(both) / 2 for both in zip(*ranks, strict=True)]
    assert mean[:4] == pytest.approx(step_losses, rel=1e-5)
    assert all(losses[4:] == losses[:4] for losses in ranks)


def test_a_sharded_runs_log_says_it_compares_no_replicas(small, store):
    config, known = small(precision="bf16", sharding="full"), facts(store.folder, 16)
    logged = []
    for count in (1, 2):
        parts = build(config, ProcessGroup(0, count, 0, CPU), known, torch.device("meta"))
        logged.append(run_info(config, parts)["hyperparameters"])
    assert "sharding" not in logged[0] and logged[0]["lowest_numerical_precision_in_comm"] == "fp32"
    assert (logged[1]["sharding"], logged[1]["lowest_numerical_precision_in_comm"]) == ("full", "bfloat16")
    assert str(logged[1]["replica_check"]).startswith("none")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"methods": (EMA(half_life=2), SWA())}, "leave out ema, swa"),
        ({"optimizer": MUON}, "--optimizer.kind adamw"),
        ({"precision": "fp16"}, "--precision bf16 or fp32"),
        ({"compile": True}, "--no-compile"),
    ],
)
def test_settings_that_need_whole_weights_are_refused_and_a_method_of_batches_is_not(small, changes, words):
    warmup = SequenceLengthWarmup(steps=12, duration=0.5, min_length=4, max_length=16, step_size=4)
    assert not small(methods=(warmup,), sharding="full").problems()
    config = small(**changes)
    assert not any("sharding" in problem for problem in config.problems())
    assert any(words in problem for problem in replace(config, sharding="full").problems())
