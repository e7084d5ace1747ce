"""The ladder compares every rung with transformers before it times, and times the configs of the benchmark."""

from argparse import Namespace
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks.gpu.bert_ladder import OWN, compare_as_timed, rungs
from benchmarks.gpu.block import Block
from language_model.attention import BACKENDS, Attend
from language_model.collator import MaskedBatch
from language_model.configs import wikipedia_baseline, wikipedia_methods
from tests.benchmarks.gpu.script_run import passed, run

pytestmark = pytest.mark.timeout(300)


def test_the_ladder_compares_with_transformers_before_it_times(tmp_path: Path) -> None:
    rungs = ["HF eager", "wikipedia_methods", "+ float8"]
    values, output = run("bert_ladder", tmp_path, "--rungs", *rungs)
    wanted = [f"{name}: fp32 as transformers" for name in OWN]
    assert passed(values) == wanted + [f"{name}: as timed, as transformers in fp32" for name in rungs]
    rows = values["BERT-Large"]["rows"]
    assert [row["given"] for row in rows] == rungs
    assert rows[1]["operations_per_step"] < rows[0]["operations_per_step"]
    assert rows[0]["tokens_per_sample"] == pytest.approx(64 * 254 / 512, rel=0.05)
    assert output.index("as timed, as transformers") < output.index("steps of 3 configs") < output.index("useful work")


def test_the_last_rungs_are_the_configs_of_the_benchmark() -> None:
    ladder = rungs(tiny=False)
    first, last = ladder["HF eager"], ladder["wikipedia_methods"]
    for found, config in ((first, wikipedia_baseline()), (last, wikipedia_methods())):
        data = replace(config.data, eval_batch=28)  # as large as the baseline's micro-batches
        assert replace(found, name=config.name, notes=config.notes, start="checkpoint") == replace(config, data=data)


def test_compiled_rungs_compute_what_transformers_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = partial(torch.compile, backend="aot_eager")
    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr("language_model.encoder.region", partial(compiled, fullgraph=True, dynamic=True))
    ladder = rungs(tiny=True)
    named = ("HF sdpa, compiled", "+ compiled")
    block = Block("some", Namespace(tiny=True, out=tmp_path))
    compare_as_timed(block, {name: replace(ladder[name], compile=True) for name in named})
    assert passed(block.values) == [f"{name}: as timed, as transformers in fp32" for name in named]


@pytest.mark.parametrize("wrong", ["one neighbour", "the last token left out"])
def test_a_rung_with_a_wrong_mask_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    right = BACKENDS["sdpa_loop"]

    def neighbour(batch: MaskedBatch) -> Attend:
        offsets = torch.cat((batch.offsets[:-3], batch.offsets[-2:]))  # two sequences attend to each other
        return right(replace(batch, offsets=offsets, lengths=offsets.diff()))

    def shorter(batch: MaskedBatch) -> Attend:
        pieces = batch.offsets.diff().tolist()

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout: float) -> torch.Tensor:
            split = zip(*(torch.split(one.transpose(0, 1), pieces, 1) for one in (q, k, v)), strict=True)
            attention = torch.nn.functional.scaled_dot_product_attention
            mixed = [attention(a, b[:, :-1], c[:, :-1]) for a, b, c in split if a.shape[1]]
            return torch.cat([one.transpose(0, 1) for one in mixed])

        return attend

    monkeypatch.setitem(BACKENDS, "sdpa_grouped", neighbour if wrong == "one neighbour" else shorter)
    block = Block("some", Namespace(tiny=True, out=tmp_path))
    with pytest.raises(SystemExit, match="unpadded: as timed"):
        compare_as_timed(block, {"unpadded": rungs(tiny=True)["unpadded"]})
