"""Construction of a BERT run."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from language_model import encoder
from language_model.build import build
from language_model.collator import MaskedBatch
from language_model.configs import CPU_SPEED_UPS, BertRunConfig
from language_model.datasets import declared
from language_model.encoder import Bert
from timedrun.distributed.process_group import ProcessGroup

CPU = torch.device("cpu")


def test_the_attention_backend_is_chosen_once_and_not_in_each_forward_pass(
    tiny_config: BertRunConfig, make_batch: Callable[..., MaskedBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(tiny_config, implementation="timedrun", speed=CPU_SPEED_UPS)
    parts = build(config, ProcessGroup(0, 1, 0, CPU), declared(config), CPU)
    assert isinstance(parts.model, Bert) and parts.model.attention == parts.attention == "sdpa_grouped"

    def refuse(*arguments: Any) -> str:
        raise AssertionError("chosen again")

    monkeypatch.setattr(encoder, "choose", refuse)
    parts.model(make_batch(config.architecture, [5, 7], padded=False))
