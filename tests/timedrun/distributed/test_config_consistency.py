"""Ranks with different configurations are refused, with each difference and its ranks."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.timedrun.distributed.thread_ranks import on_all
from timedrun.config import RunConfig
from timedrun.distributed import config_consistency
from timedrun.distributed.config_consistency import ConfigMismatch
from timedrun.errors import ExitCode

ROOT = Path(__file__).resolve().parents[3]


def require(*given: dict[str, object]) -> None:
    errors = on_all(len(given), lambda ranks: config_consistency.require(ranks, given[ranks.rank]))
    assert len({str(error) for error in errors}) == 1
    if errors[0]:
        raise errors[0]


def test_equal_ranks_agree(toy_config: Callable[..., RunConfig]) -> None:
    given = config_consistency.values_to_compare(toy_config(), ROOT, {"--resume": False})
    require(given, dict(given), dict(given))


def test_each_setting_that_differs_is_named_with_its_ranks(toy_config: Callable[..., RunConfig]) -> None:
    usual, other = toy_config(), toy_config(seed=7)
    other = replace(other, optimizer=replace(other.optimizer, peak_lr=0.25))
    first = config_consistency.values_to_compare(usual, ROOT, {"--resume": False})
    last = config_consistency.values_to_compare(other, ROOT, {"--resume": True})
    with pytest.raises(ConfigMismatch) as refused:
        require(first, first, first, last)
    lines = str(refused.value).splitlines()[1:-1]
    assert sorted(lines) == [
        "  - --resume: false on ranks 0-2, true on rank 3",
        "  - optimizer.peak_lr: 0.1 on ranks 0-2, 0.25 on rank 3",
        f"  - seed: {usual.seed} on ranks 0-2, 7 on rank 3",
    ]
    assert refused.value.exit_code == ExitCode.USAGE


def test_versions_and_source_are_compared(
    toy_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "timedrun.provenance.system.provenance", lambda root: {"commit": "def", "dirty": True, "difference": "d1"}
    )
    first = config_consistency.values_to_compare(toy_config(), ROOT, {})
    monkeypatch.setattr(torch, "__version__", "1.0")
    monkeypatch.setattr(
        "timedrun.provenance.system.provenance", lambda root: {"commit": "def", "dirty": True, "difference": "d2"}
    )
    with pytest.raises(ConfigMismatch) as refused:
        require(first, config_consistency.values_to_compare(toy_config(), ROOT, {}))
    for name in ("torch", "source difference"):
        assert f"- {name}: " in str(refused.value)
    monkeypatch.setattr("timedrun.provenance.system.provenance", lambda root: {"commit": "abc", "dirty": False})
    with pytest.raises(ConfigMismatch) as refused:
        require(first, config_consistency.values_to_compare(toy_config(), ROOT, {}))
    for name in ("source commit", "source dirty"):
        assert f"- {name}: " in str(refused.value)


def test_a_setting_that_one_rank_lacks_is_named() -> None:
    with pytest.raises(ConfigMismatch, match="a: 1 on ranks 0, 2, nothing on rank 1"):
        require({"a": 1}, {}, {"a": 1})
