"""Ranks with different configurations are refused, with each difference and its ranks."""

from dataclasses import replace
from pathlib import Path

import torch

from judging.ground.errors import ExitCode
from tests.timedrun.distributed.thread_ranks import on_all
from timedrun.distributed.config_consistency import ConfigMismatch, require
from timedrun.provenance import source
from timedrun.run.origin import values_to_compare


def differences(*given: dict[str, object]) -> list[str]:
    """The lines of the error that all ranks raise alike."""
    errors = on_all(len(given), lambda ranks: require(ranks, given[ranks.rank]))
    assert all(isinstance(error, ConfigMismatch) and error.exit_code == ExitCode.USAGE for error in errors)
    (text,) = {str(error) for error in errors}
    return sorted(text.splitlines()[1:-1])


def test_each_setting_that_differs_is_named_with_its_ranks(toy_config):
    other = toy_config(seed=7)
    other = replace(other, optimizer=replace(other.optimizer, peak_lr=0.25))
    first = values_to_compare(toy_config(seed=1), Path(), {"--resume": False})
    last = values_to_compare(other, Path(), {"--resume": True})
    assert on_all(2, lambda ranks: require(ranks, dict(first))) == [None, None]
    assert differences(first, first, first, last) == [
        "  - --resume: false on ranks 0-2, true on rank 3",
        "  - optimizer.peak_lr: 0.1 on ranks 0-2, 0.25 on rank 3",
        "  - seed: 1 on ranks 0-2, 7 on rank 3",
    ]
    assert differences({"a": 1}, {}, {"a": 1}) == ["  - a: 1 on ranks 0, 2, nothing on rank 1"]


def test_versions_and_source_are_compared(toy_config, monkeypatch):
    compared = []
    for torch_version, commit, dirty in (("1.0", "abc", False), ("2.0", "def", True)):
        state = {"commit": commit, "dirty": dirty}
        monkeypatch.setattr(torch, "__version__", torch_version)
        monkeypatch.setattr(source, "provenance", lambda root, state=state: state)
        compared.append(values_to_compare(toy_config(), Path(), {}))
    assert differences(*compared) == [
        '  - source commit: "abc" on rank 0, "def" on rank 1',
        "  - source dirty: false on rank 0, true on rank 1",
        '  - torch: "1.0" on rank 0, "2.0" on rank 1',
    ]
