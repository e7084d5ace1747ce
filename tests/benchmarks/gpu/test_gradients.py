"""Configs are compared with a reference before they are timed; one that computes something else is named."""

import json
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks.gpu.gradients import compared, main, reference
from language_model.collator import MaskedBatch
from language_model.gpt.attention_mask import attention_mask
from timedrun.methods.blurpool import blur
from timedrun.methods.ragged_attention import BACKENDS, Attend
from timedrun.runner.benchmark import find
from timedrun.runner.config_choice import config_of

pytestmark = pytest.mark.timeout(300)
ALL = "--device cpu --no-compile "
SMALL = {
    "language_model": f"{ALL} --architecture.layers 1 --architecture.hidden 64 --architecture.heads 4"
    " --architecture.intermediate 256 --architecture.positions 64 --architecture.vocabulary 1024 --data.longest 64"
    " --data.max-predictions 12 --speed.no-fused-dense-gelu-dense",
    "image_classification": f"{ALL} --micro-batch 4 --model.layers 1 1 --model.widths 16 32 --data.train-size 32",
    "fineweb": f"{ALL} --model.layers 2 --model.hidden 32 --model.heads 2 --model.context 128 --model.vocabulary 257",
}
DATA = {"language_model": "wikipedia", "image_classification": "imagenet", "fineweb": "fineweb"}
OF_METHODS = ["--model.attention-window", "128", "--window-warmup-steps", "40", "--model.value-embeddings", "1"]


@pytest.fixture(autouse=True)
def no_references_are_kept() -> None:
    reference.cache_clear()


def small(benchmark: str, text: str, *overrides: str) -> Any:
    return config_of(find(benchmark), text, DATA[benchmark], [*SMALL[benchmark].split(), *overrides])


def failed(config: Any) -> list[str]:
    return [check.name for check in compared("config", config) if not check.passed]


@pytest.mark.parametrize(
    ("benchmark", "configs", "overrides", "count"),
    [
        ("language_model", ["baseline", "methods+float8"], ["--a.speed.attention", "sdpa"], 3),
        ("image_classification", ["baseline", "methods-progressive_resizing"], [], 2),
        ("fineweb", ["baseline", "methods"], [f"--b.{word[2:]}" if "--" in word else word for word in OF_METHODS], 2),
    ],
)
def test_configs_are_compared_and_all_values_written(tmp_path, capsys, benchmark, configs, overrides, count):
    words = SMALL[benchmark]
    if benchmark == "language_model":  # transformers' model has no speed-up to leave out
        words, overrides = words.rpartition(" ")[0], [*overrides, "--b.speed.no-fused-dense-gelu-dense"]
    out = tmp_path / "values.json"
    main([benchmark, *configs, "--data", DATA[benchmark], "--out", str(out), *words.split(), *overrides])
    values = json.loads(out.read_text())
    assert [check["passed"] for check in values["checks"]] == [True] * count
    assert capsys.readouterr().out.count("passed: ") == count and len(values["configs"]) == 2


def test_a_failed_comparison_is_written_and_ends_the_script(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.gpu.gradients.LARGEST", 0.0)
    words = ["fineweb", "baseline", "--out", str(tmp_path / "x"), *SMALL["fineweb"].split()]
    with pytest.raises(SystemExit, match="no time of it counts: .*: as timed, as eager fp32"):
        main(words)
    assert not json.loads((tmp_path / "x").read_text())["checks"][0]["passed"]


def test_a_bert_with_a_wrong_mask_is_named(monkeypatch):
    right = BACKENDS["sdpa_loop"]

    def neighbour(batch: MaskedBatch) -> Attend:
        offsets = torch.cat((batch.offsets[:-3], batch.offsets[-2:]))  # two sequences attend to each other
        return right(replace(batch, offsets=offsets, lengths=offsets.diff()))

    monkeypatch.setitem(BACKENDS, "sdpa_grouped", neighbour)
    assert failed(small("language_model", "methods", "--speed.row-multiple", "1")) == [
        "config: fp32 as transformers",
        "config: as timed, as eager fp32",
    ]


def test_a_gpt_without_the_documents_mask_is_named(monkeypatch):
    config = small("fineweb", "methods", *OF_METHODS)
    ends = iter([config.model.vocabulary - 1] * 2)  # right in fp32 and in the usual bf16

    def forgetful(tokens: torch.Tensor, window: torch.Tensor, end_of_text: int) -> Any:
        return attention_mask(tokens, window=window, end_of_text=next(ends, None))

    monkeypatch.setattr("language_model.gpt.model.attention_mask", forgetful)
    assert failed(config)


def test_a_wrong_blur_in_the_timed_layout_is_named(monkeypatch):
    def moved(inputs: torch.Tensor, stride: Any = 1) -> torch.Tensor:
        return blur(inputs if inputs.is_contiguous() else inputs.roll(1, 3), stride)  # the reference is contiguous

    monkeypatch.setattr(sys.modules["timedrun.methods.blurpool"], "blur", moved)
    assert failed(small("image_classification", "methods-progressive_resizing"))
