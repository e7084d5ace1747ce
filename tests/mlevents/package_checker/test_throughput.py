"""Runs that are faster than the described accelerators can compute, forged from a good package."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.mlevents.conftest import put
from tests.mlevents.package_checker.package_mutations import SYSTEM, description, edit_logs, tree_findings


def found(good: Path, folder: Path, *, hours: float, division: str = "closed", **system: Any) -> list[tuple[str, str]]:
    """Level and message of the findings on runs of 90 epochs in `hours`."""
    shutil.copytree(good, folder)
    values = {"accelerator_model_name": "NVIDIA A100-SXM4-80GB", "accelerators_per_node": "8", "number_of_nodes": "1"}
    described = description(**{**values, "division": division, **system})
    (folder / "systems" / f"{SYSTEM}.json").write_text(json.dumps(described))

    def change(records: list[dict[str, Any]]) -> None:
        put(records, "submission_division", division)
        start = next(record for record in records if record["key"] == "run_start")
        for place, record in enumerate(records[records.index(start) :]):
            record["time_ms"] = start["time_ms"] + place
            if record["key"] == "eval_accuracy":
                record["metadata"]["epoch_num"] *= 30  # three evaluations
        records[-1]["time_ms"] = start["time_ms"] + hours * 3_600_000

    edit_logs(folder, change, only=1)
    return [(finding.level, finding.message) for finding in tree_findings(folder) if finding.rule == "throughput"]


def test_a_run_faster_than_its_accelerators_is_an_error_and_one_near_their_peak_a_warning(good, tmp_path):
    # 90 epochs of ImageNet: 2.83e18 operations (24.5e9 an image); 8 A100: 2.496e15 a second, so 0.315 hours at peak.
    ((level, message),) = found(good, tmp_path / "over", hours=0.3)
    assert level == "error" and "1.05 of the peak of 8 NVIDIA A100-SXM4-80GB" in message
    assert [level for level, _ in found(good, tmp_path / "near", hours=0.35)] == ["warning"]
    assert found(good, tmp_path / "usual", hours=1.2) == []
    assert found(good, tmp_path / "two", hours=0.3, number_of_nodes="2") == []
    ((level, message),) = found(good, tmp_path / "open", hours=0.1, division="open")
    assert level == "warning" and message.endswith("an open run may have a smaller model")


@pytest.mark.parametrize(
    "system",
    [
        {"accelerator_model_name": "Example A80"},
        {"accelerator_model_name": 3},
        {"accelerators_per_node": "0"},
        {"number_of_nodes": "many"},
    ],
)
def test_nothing_is_said_of_unknown_accelerators(good, tmp_path, system):
    assert found(good, tmp_path / "unknown", hours=0.01, **system) == []
