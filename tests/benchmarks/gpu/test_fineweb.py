"""FineWeb's steps are compared before they are timed; short runs are fitted and projected."""

import math
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import fineweb
from benchmarks.gpu.block import Block
from benchmarks.gpu.fineweb import TINY, TINY_OF, compare_with_dense_masks, project
from language_model.gpt.attention_mask import attention_mask
from language_model.gpt.configs import GptRunConfig
from tests.benchmarks.gpu.script_run import passed, run
from timedrun.benchmark import find
from timedrun.config_choice import config_of

pytestmark = pytest.mark.timeout(300)


def test_steps_of_fineweb_are_compared_with_dense_masks_before_they_are_timed(tmp_path: Path) -> None:
    values, output = run("fineweb", tmp_path, "steps")
    assert passed(values) == [f"{name}: bf16 as fp32 under dense masks" for name in ("baseline", "methods")]
    assert all(row["tokens_per_second"] > 0 and row["peak_bytes"] for row in values["steps"]["rows"])
    assert output.index("under dense masks") < output.index("steps of 2 configs")


def test_fineweb_without_the_documents_mask_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*TINY, *TINY_OF["methods"], "--model.vocabulary", "257"]
    config: GptRunConfig = config_of(find("fineweb"), "methods", "fineweb", words)
    ends = iter([config.model.vocabulary - 1] * 2)  # right in fp32 and in the usual bf16

    def forgetful(tokens: torch.Tensor, window: torch.Tensor, end_of_text: int) -> Any:
        return attention_mask(tokens, window=window, end_of_text=next(ends, None))

    monkeypatch.setattr("language_model.gpt.model.attention_mask", forgetful)
    with pytest.raises(SystemExit, match="methods: bf16 as fp32"):
        compare_with_dense_masks(Block("some", Namespace(tiny=True, out=tmp_path)), "methods", config)


def test_tiny_takes_no_config_of_another_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["steps", "--tiny", "--out", str(tmp_path / "out"), "--configs", "methods", "small_baseline"]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr("sys.argv", ["fineweb", *words])
        fineweb.main()
    assert "leave small_baseline out of --configs" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_curve_of_fineweb_is_trained_and_projected(tmp_path: Path) -> None:
    values, output = run("fineweb", tmp_path, "curve", "--configs", "methods")
    found = values["methods"]
    assert found["tokens"] == [2048, 4096, 8192] and found["target"] == 3.28
    assert sorted(found["losses"], reverse=True) == found["losses"] and found["tokens_per_second"] > 0
    assert {one["exponent"] for one in found["projections"].values()} == {0.28, 0.37}
    assert "PROJECTION to the target" in output


def test_a_projection_finds_the_law_of_the_losses_and_its_interval_holds_it() -> None:
    tokens = [4e7, 6e7, 1e8, 1.6e8]
    law = [2.5 + 470 * one**-0.28 for one in tokens]
    exact = project(tokens, law, 3.28, 0.28)
    wanted = ((3.28 - 2.5) / 470) ** (-1 / 0.28)
    assert exact[:3] == pytest.approx((2.5, 470, wanted), rel=1e-6)
    assert (exact.low, exact.high) == pytest.approx((wanted, wanted), rel=1e-3)
    apart = [loss + error for loss, error in zip(law, (3e-3, -3e-3, -3e-3, 3e-3), strict=True)]
    found = project(tokens, apart, 3.28, 0.28)
    assert found.low < wanted < found.high < math.inf
    assert project(tokens, law, 2.4, 0.28).tokens == math.inf  # below the floor
    assert project(tokens, law[::-1], 3.28, 0.28)[2:] == (math.inf, 0.0, math.inf)  # losses that rise
