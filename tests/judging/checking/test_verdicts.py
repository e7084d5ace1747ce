"""A log and the config stored with it must agree: forged from recorded runs of this repository."""

import json
import shutil
from pathlib import Path

import pytest

from judging.checking.verdicts import check_logs, check_paths, described_division
from tests.mlevents.conftest import good_records, lines_of

RECORDED = Path(__file__).parents[3] / "results" / "digits_demo" / "digits_baseline"


@pytest.fixture
def results(tmp_path) -> Path:
    """Two recorded runs of digits with their configs."""
    for number in (0, 1):
        (tmp_path / f"set/run_{number}").mkdir(parents=True)
        for name in (f"result_{number}.txt", f"run_{number}/config.json"):
            shutil.copy(RECORDED / name, tmp_path / "set" / name)
    return tmp_path / "set"


def found(folder: Path) -> list[tuple[str, str]]:
    """Level and message of the findings about configs."""
    reports, _ = check_logs(sorted(folder.glob("result_*.txt")), None)
    findings = [finding for report in reports for finding in report.findings]
    return [(finding.level, finding.message) for finding in findings if finding.rule == "config-digest"]


def faster(folder: Path) -> None:
    path = folder / "run_0/config.json"
    values = json.loads(path.read_text())
    values["optimizer"]["peak_lr"] *= 2
    path.write_text(json.dumps(values))


def without_digest(folder: Path) -> None:
    path = folder / "result_0.txt"
    path.write_text("".join(line for line in path.open() if '"config_digest"' not in line))


def relabelled(folder: Path, key: str, old: str, new: str) -> None:
    path = folder / "result_0.txt"
    before, after = f'"key": "{key}", "value": {old},', f'"key": "{key}", "value": {new},'
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))


@pytest.mark.results
@pytest.mark.parametrize(
    ("forge", "words"),
    [
        (faster, "run_0/config.json is not the config of result_0.txt: it was changed after the run"),
        (lambda folder: (folder / "run_0/config.json").unlink(), "has no run_0/config.json"),
        (lambda folder: shutil.rmtree(folder / "run_0"), "has no run_0/config.json"),
        (without_digest, "logs no config_digest"),
        (lambda folder: relabelled(folder, "quality_target", "0.991", "0.5"), "logs quality_target 0.5, run_0/config"),
        (lambda folder: relabelled(folder, "global_batch_size", "48", "96"), "logs global_batch_size 96, run_0/config"),
    ],
)
def test_an_altered_or_missing_config_of_a_run_is_an_error(results, forge, words):
    assert found(results) == []
    forge(results)
    ((level, message),) = found(results)
    assert level == "error" and words in message


@pytest.mark.results
def test_a_log_that_was_copied_alone_has_a_warning_and_one_in_a_package_an_error(results):
    alone = results.parent / "package/results/box/resnet"
    alone.mkdir(parents=True)
    shutil.copy(results / "result_0.txt", alone)
    assert [level for level, _ in found(alone)] == ["warning"]
    (results.parent / "package/benchmarks/resnet/implementations/box").mkdir(parents=True)
    assert [level for level, _ in found(alone)] == ["error"]


@pytest.mark.results
def test_a_digits_run_without_its_dataset_and_target_is_no_result_of_imagenet(results):
    path = results / "result_0.txt"
    kept = [line for line in path.open() if '"key": "dataset"' not in line and '"quality_target"' not in line]
    path.write_text("".join(kept))
    reports, _ = check_logs([path], None)
    errors = [finding.message for finding in reports[0].findings if finding.level == "error"]
    assert not reports[0].demonstration
    assert any("train_samples is 897, but imagenet has 1,281,167 to 1,281,168" in message for message in errors)
    assert any("eval_samples is 900" in message for message in errors)


def test_the_division_of_a_packaged_log_is_that_of_its_system_description(tmp_path):
    log = tmp_path / "results/box/resnet/result_0.txt"
    assert described_division(log) is None
    (tmp_path / "systems").mkdir()
    (tmp_path / "systems/box.json").write_text('{"division": "open"}')
    assert described_division(log) == "open"
    assert described_division(tmp_path / "runs/box/resnet/result_0.txt") is None
    assert described_division(Path("/logs/result_0.txt")) is None


def test_a_round_without_rules_is_said_once_a_submission(tmp_path):
    (tmp_path / "training_results_v0.7/Org/systems").mkdir(parents=True)
    for number in range(3):
        path = tmp_path / f"training_results_v0.7/Org/results/System/resnet/result_{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines_of(good_records(seed=number))))
    for given, kind in ((tmp_path, "package"), (path, "log")):
        results = check_paths([given], None, run_official=False)
        assert [result.kind for result in results for f in result.findings if f.rule == "no-rules"] == [kind]
