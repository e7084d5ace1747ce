"""The adapters of docs/mlperf_log_adapters.md write logs that both checkers pass, called as the libraries do.

Both libraries need another torch; the stand-ins below have the parts of their interface that the adapters use."""

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mlevents import keys, mlcommons
from mlevents.checks.log_check import check
from mlevents.rounds import ruleset
from mlevents.runlog.trainer_run import MLPerfRun
from tests.mlevents.test_trainer_run import settings_of

PAGE = Path(__file__).parents[2] / "docs" / "mlperf_log_adapters.md"
QUALITIES = (0.9, 0.95, 1.0, 1.0)  # of the target; the run ends at the third


class Validator:
    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def should_validate(self, step: int) -> bool:
        return step % self.trainer.interval == 0

    def validate(self, model_parts: list[Any], step: int) -> None:
        loss = self.trainer.target / QUALITIES[step // self.trainer.interval - 1]
        self.trainer.metrics_processor.log_validation(loss=loss, step=step)


class Trainer:
    def __init__(self, config: dict[str, Any]) -> None:
        self.step, self.target, self.interval = 0, config["target"], config["interval"]
        self.lines: list[float] = []
        self.metrics_processor = SimpleNamespace(log_validation=lambda loss, step: self.lines.append(loss))
        self.validator = Validator(self)

    def train(self) -> None:
        while self.should_continue_training():
            self.step += 1
            if self.validator.should_validate(self.step):
                self.validator.validate([], self.step)

    def should_continue_training(self) -> bool:
        return self.step < 10**4


@pytest.fixture
def adapters(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for name, attributes in (("composer", {"Callback": object}), ("torchtitan.trainer", {"Trainer": Trainer})):
        for module in {name.split(".")[0], name}:
            monkeypatch.setitem(sys.modules, module, made := ModuleType(module))
            vars(made).update(attributes)
    names = {}
    for code in re.findall(r"```python\n(from .*?)```", PAGE.read_text(), flags=re.DOTALL):
        exec(code, names)
    return names


def a_run(path, benchmark, round_, division, optimizer=None):
    """Return a run and the steps between its evaluations."""
    settings = settings_of(benchmark, round_, division, optimizer)
    run = MLPerfRun(benchmark, ruleset(f"{round_}.0"), path, settings)
    interval = run.benchmark.evaluation_interval
    batch = settings[keys.GLOBAL_BATCH_SIZE]
    return run, round(interval.at(batch) / batch)


def assert_passed(path: Path, round_: str) -> None:
    assert not [finding.message for finding in check(path, f"{round_}.0").findings if finding.level == "error"]
    assert mlcommons.check_log(path, f"{round_}.0").verdict == "pass"


def test_composers_events_make_a_log_that_ends_at_the_target(adapters, path):
    run, interval = a_run(path, "bert", "2.1", keys.OPEN)
    stopped = []
    metric = SimpleNamespace(compute=lambda: run.target * QUALITIES[number])
    state = SimpleNamespace(eval_metrics={"eval": {"accuracy": metric}}, stop_training=lambda: stopped.append(number))
    with run:
        callback = adapters["MLPerf"](run, "accuracy")
        callback.fit_start(state, None)
        for number in range(len(QUALITIES)):
            batch, epoch = SimpleNamespace(value=interval * (number + 1)), SimpleNamespace(value=0)
            state.timestamp = SimpleNamespace(batch=batch, epoch=epoch)
            callback.eval_before_all(state, None)
            callback.eval_after_all(state, None)
            if stopped:
                break
    assert stopped == [2]
    assert_passed(path, "2.1")


def test_torchtitans_trainer_ends_at_the_target_and_still_logs_its_losses(adapters, path):
    run, interval = a_run(path, "llama31_8b", "6.1", keys.CLOSED, "adamw")
    with run:
        trainer = adapters["MLPerfTrainer"]({"target": run.target, "interval": interval}, run)
        trainer.train()
    assert trainer.step == 3 * interval and len(trainer.lines) == 3
    assert_passed(path, "6.1")
