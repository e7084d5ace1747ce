"""Steps are compared with a reference before they are timed; failures end the script."""

import json
import sys
from argparse import Namespace
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu.steps import CASES, Block, compare, configs_of, main, reference
from language_model.collator import MaskedBatch
from language_model.gpt.attention_mask import attention_mask
from timedrun.methods.blurpool import blur, blur_by_slices
from timedrun.methods.ragged_attention import BACKENDS, Attend

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def no_references_are_kept() -> None:
    reference.cache_clear()


@pytest.fixture
def block(tmp_path: Path) -> Block:
    return Block("some", Namespace(tiny=True, out=tmp_path))


def run(out: Path, *options: str) -> dict[str, Any]:
    """Run the script with --tiny in this process; return its JSON values."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["steps", *options, "--tiny", "--out", str(out)])
        main()
    (path,) = out.glob("*.json")
    values: dict[str, Any] = json.loads(path.read_text())
    return values


def passed(values: dict[str, Any]) -> list[str]:
    return [name for name, check in values["checks"].items() if check["passed"]]


def tiny(case: str, text: str) -> Any:
    """Return a tiny config of a case."""
    return configs_of(CASES[case], [text], [], tiny=True)[text]


@pytest.mark.parametrize(
    ("case", "labels"),
    [
        ("bert", ["HF eager", "+ float8"]),
        ("images", ["baseline", "methods, one size"]),
        ("fineweb", ["baseline", "methods"]),
    ],
)
def test_configs_are_compared_before_they_are_timed(tmp_path, capsys, case, labels):
    values, output = run(tmp_path, case, *labels), capsys.readouterr().out
    assert {f"{label}: as timed, as eager fp32" for label in labels} <= {*passed(values)}
    assert ("+ float8: fp32 as transformers" in passed(values)) == (case == "bert")
    rows = values["steps"]["rows"]
    assert [row["given"] for row in rows] == labels and all(row["peak_bytes"] for row in rows)
    if case == "bert":
        assert rows[1]["operations_per_step"] < rows[0]["operations_per_step"]
        assert rows[0]["tokens_per_sample"] == pytest.approx(64 * 254 / 512, rel=0.05)
    assert output.index("as timed") < output.index("steps of 2 configs") < output.index("samples/s")


@pytest.mark.parametrize("case", CASES)
def test_the_configs_of_every_case_exist_in_full_size(case):
    configs = configs_of(CASES[case], [], [], tiny=False).values()
    assert {config.device for config in configs} == {"auto"}
    assert not any(config.problems() for config in configs if hasattr(config, "problems"))


def test_compiled_rungs_compute_what_transformers_does(block, monkeypatch):
    compiled = partial(torch.compile, backend="aot_eager")
    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr("language_model.encoder.region", partial(compiled, fullgraph=True, dynamic=True))
    for label in ("HF sdpa, compiled", "+ compiled"):
        config = tiny("bert", label)
        compare(block, label, replace(config, compile=True, architecture=replace(config.architecture, layers=1)))
    assert passed(block.values)[-1] == "+ compiled: as timed, as eager fp32"


def test_a_bert_with_a_wrong_mask_is_not_timed(block, monkeypatch):
    right = BACKENDS["sdpa_loop"]

    def neighbour(batch: MaskedBatch) -> Attend:
        offsets = torch.cat((batch.offsets[:-3], batch.offsets[-2:]))  # two sequences attend to each other
        return right(replace(batch, offsets=offsets, lengths=offsets.diff()))

    monkeypatch.setitem(BACKENDS, "sdpa_grouped", neighbour)
    monkeypatch.setattr("benchmarks.gpu.steps.LOSS", 1.0)  # past the comparison in fp32, which finds it as well
    monkeypatch.setattr("benchmarks.gpu.steps.GRADIENT", 10.0)
    with pytest.raises(SystemExit, match="unpadded: as timed"):
        compare(block, "unpadded", tiny("bert", "unpadded"))


def test_a_gpt_without_the_documents_mask_is_not_timed(block, monkeypatch):
    config = tiny("fineweb", "methods")
    ends = iter([config.model.vocabulary - 1] * 2)  # right in fp32 and in the usual bf16

    def forgetful(tokens: torch.Tensor, window: torch.Tensor, end_of_text: int) -> Any:
        return attention_mask(tokens, window=window, end_of_text=next(ends, None))

    monkeypatch.setattr("language_model.gpt.model.attention_mask", forgetful)
    with pytest.raises(SystemExit, match="methods: as timed"):
        compare(block, "methods", config)


def test_a_compiled_blur_of_another_padding_is_not_timed(block, monkeypatch):
    def blurred(inputs: torch.Tensor, stride: Any = 1) -> torch.Tensor:
        if torch.compiler.is_compiling() and wrong:
            padded = torch.nn.functional.pad(inputs, (1, 1, 1, 1), mode="replicate")
            down, right = (stride, stride) if isinstance(stride, int) else stride
            return blur_by_slices(padded, 1)[:, :, 1:-1:down, 1:-1:right]
        return blur(inputs, stride)

    monkeypatch.setattr(sys.modules["timedrun.methods.blurpool"], "blur", blurred)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    config = tiny("images", "methods, one size")
    config = replace(config, compile=True, model=replace(config.model, layers=(1, 1), widths=(16, 32)))
    wrong = False
    compare(block, "right", config)
    wrong = True
    with pytest.raises(SystemExit, match="wrong: as timed"):
        compare(block, "wrong", config)


def test_a_failed_check_ends_the_script_and_is_written(block, tmp_path):
    with pytest.raises(SystemExit, match="nothing after it was measured"):
        block.check("equal", False, {"apart": 1.0})
    assert json.loads((tmp_path / "some.json").read_text())["checks"]["equal"]["found"] == {"apart": 1.0}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_nothing_is_measured(tmp_path):
    with pytest.raises(SystemExit, match="no CUDA device; nothing was measured"):
        Block("some", Namespace(tiny=False, out=tmp_path / "new"))
    assert not (tmp_path / "new").exists()
