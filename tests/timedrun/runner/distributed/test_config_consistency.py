"""Ranks with unequal configurations, versions or sources are refused, and each difference is named."""

from dataclasses import replace
from pathlib import Path

import torch

from judging.ground.errors import ExitCode
from tests.timedrun.runner.distributed.thread_ranks import on_all
from timedrun.runner.distributed.config_consistency import ConfigMismatch, require
from timedrun.runner.provenance import source
from timedrun.runner.run.origin import values_to_compare


def differences(*given: dict[str, object]) -> list[str]:
    """The lines of the error that all ranks raise alike."""
    errors = on_all(len(given), lambda ranks: require(ranks, given[ranks.rank]))
    assert all(isinstance(error, ConfigMismatch) and error.exit_code == ExitCode.USAGE for error in errors)
    (text,) = {str(error) for error in errors}
    return sorted(text.splitlines()[1:-1])


def test_each_setting_version_and_source_that_differs_is_named_with_its_ranks(toy_config, monkeypatch):
    other = toy_config(seed=7)
    other = replace(other, optimizer=replace(other.optimizer, peak_lr=0.25))
    compared = []
    for number, config in enumerate((toy_config(seed=1), other)):
        state = {"commit": f"c{number}", "dirty": bool(number)}
        monkeypatch.setattr(torch, "__version__", f"{number}.0")
        monkeypatch.setattr(source, "provenance", lambda root, state=state: state)
        compared.append(values_to_compare(config, Path(), {"--resume": bool(number)}))
    first, last = compared
    assert on_all(2, lambda ranks: require(ranks, dict(first))) == [None, None]
    assert differences(first, first, first, last) == [
        "  - --resume: false on ranks 0-2, true on rank 3",
        "  - optimizer.peak_lr: 0.1 on ranks 0-2, 0.25 on rank 3",
        "  - seed: 1 on ranks 0-2, 7 on rank 3",
        '  - source commit: "c0" on ranks 0-2, "c1" on rank 3',
        "  - source dirty: false on ranks 0-2, true on rank 3",
        '  - torch: "0.0" on ranks 0-2, "1.0" on rank 3',
    ]
    assert differences({"a": 1}, {}, {"a": 1}) == ["  - a: 1 on ranks 0, 2, nothing on rank 1"]
