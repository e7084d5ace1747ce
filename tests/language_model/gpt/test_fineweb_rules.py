"""A run on FineWeb is held to the validation tokens of the speed runs."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from language_model.gpt.run_config import GptRunConfig
from mlevents.checks.log_check import check
from timedrun.benchmark import find
from timedrun.distributed.process_group import ProcessGroup
from timedrun.preflight.dry_run import SimulatedClock, write_log

BENCHMARK = find("fineweb")


@pytest.mark.parametrize(("tokens", "rules"), [(10_485_760, []), (1_048_576, ["dataset-size"])])
def test_a_loss_on_fewer_tokens_is_no_result(tokens: int, rules: list[str], tmp_path: Path) -> None:
    config = BENCHMARK.config("methods")
    assert isinstance(config, GptRunConfig)
    config = replace(config, data=replace(config.data, eval_tokens=tokens))
    plan = BENCHMARK.plan(config, ProcessGroup(0, 8, 0, torch.device("cpu")), None)
    write_log(BENCHMARK.spec, config, plan, tmp_path / "result_0.txt", "8xH100", SimulatedClock())
    report = check(tmp_path / "result_0.txt", BENCHMARK.spec.ruleset)
    assert [finding.rule for finding in report.findings if finding.level == "error"] == rules
    assert not report.demonstration


def test_the_small_configs_are_demonstrations_on_other_text() -> None:
    for name in ("small_baseline", "small_methods"):
        assert BENCHMARK.config(name).dataset != BENCHMARK.spec.dataset
