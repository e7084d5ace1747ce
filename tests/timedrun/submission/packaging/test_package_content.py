"""Content of packages: origin of the results, answers, and repeatable runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from judging.ground.errors import UsageError
from judging.scoring.score import score
from mlevents.mlcommons import OfficialVerdict
from mlevents.record import read
from mlevents.rounds import RULESETS
from mlevents.rounds import ruleset as rules_named
from timedrun.provenance.system_answers import Answers
from timedrun.submission.packaging.described_system import STATUS_WORDS
from timedrun.submission.packaging.package import PackageError, PackageReport, package

MakeSet = Callable[..., Path]
DIGEST = "sha256:" + "a" * 64
DATA = {"name": "imagenet", "sha256": "b" * 64, "of": "every file"}


def _package(sets: list[Path], out: Path, source: Path, check: bool = False, **more: Any) -> PackageReport:
    return package(sets, out, submitter="Example", source=source, check=check, **more)


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


def _recorded(folder: Path, number: int, **values: Any) -> None:
    path = folder / f"run_{number}" / "provenance.json"
    path.write_text(json.dumps(_json(path) | values))


def _implementation(report: PackageReport, system: str = "1xCPU-baseline", benchmark: str = "resnet") -> Path:
    return report.folder / "benchmarks" / benchmark / "implementations" / system


def test_image_data_and_environment_of_the_runs_are_carried_into_the_package(
    tmp_path: Path, make_set: MakeSet, source: Path
) -> None:
    folder = make_set(tmp_path / "set")
    for number in range(5):
        _recorded(folder, number, image_digest=DIGEST, data=DATA, dirty=False)
    report = _package([folder], tmp_path / "out", source)
    described = _json(_implementation(report) / "1xCPU-baseline_timedrun.json")
    (manifest,) = _json(report.folder / "manifest.json")["runs"]
    for one in (described, manifest):
        assert one["images"] == [DIGEST] and one["data"] == [DATA] and one["dirty"] == [False]
        assert one["results"] == [f"result_{n}.txt" for n in range(5)] and len(one["environments_sha256"]) == 1
    assert DIGEST in (_implementation(report) / "README.md").read_text() and report.notes == []
    assert {"starting_weights_filename", "weight_transformations", "weight_data_types", "input_data_types"} < set(
        described
    )
    assert described["retraining"].startswith("none")


def test_missing_and_differing_records_of_runs_are_noted(tmp_path: Path, make_set: MakeSet, source: Path) -> None:
    folder = make_set(tmp_path / "set")
    _recorded(folder, 1, data=DATA, image_digest=None)
    report = _package([folder], tmp_path / "out", source)
    described = _json(_implementation(report) / "1xCPU-baseline_timedrun.json")
    assert described["data"] == ["none recorded", DATA] and described["images"] == ["none recorded"]
    assert "Container image: none recorded." in (_implementation(report) / "README.md").read_text()
    assert any("different digests of their data" in note for note in report.notes)
    assert any("container image: none recorded" in note for note in report.notes)


def test_answers_fill_the_description_and_never_contradict_it(tmp_path: Path, make_set: MakeSet, source: Path) -> None:
    folder = make_set(tmp_path / "set")
    path = folder / "run_0" / "system.json"
    path.write_text(json.dumps(_json(path) | {"cooling": ""}))
    given = Answers(path=Path("answers.json"), given={"cooling": "air", "hw_notes": "warm"}, override={})
    report = _package([folder], tmp_path / "out", source, answers=given)
    description = _json(report.folder / "systems" / "1xCPU-baseline.json")
    assert description["cooling"] == "air" and description["hw_notes"] == "warm" and len(description) == 33
    wrong = Answers(path=Path("answers.json"), given={"framework": "Other 1.0"}, override={})
    with pytest.raises(UsageError, match="set: answers.json: framework was detected as 'PyTorch"):
        _package([folder], tmp_path / "refused", source, answers=wrong)
    assert not (tmp_path / "refused").exists()


def test_open_questions_refuse_a_submission_and_are_noted_for_a_demonstration(
    tmp_path: Path, make_set: MakeSet, source: Path
) -> None:
    digits = {"dataset": "digits", "quality_target": 0.95, "qualities": (0.96,), "times": (0.1, 0.2, 0.3)}
    for name, logged in (("imagenet", {}), ("digits", digits)):
        path = make_set(tmp_path / name, **logged) / "run_0" / "system.json"
        path.write_text(json.dumps(_json(path) | {"cooling": "", "host_networking": "tbd", "hw_notes": ""}))
    with pytest.raises(PackageError) as refused:
        _package([tmp_path / "imagenet"], tmp_path / "refused", source)
    assert "1xCPU-baseline: host_networking (cards or ports" in str(refused.value) and "hw_notes" not in str(
        refused.value
    )
    assert ": cooling (air" in str(refused.value) and "--answers FILE" in str(refused.value)
    assert not (tmp_path / "refused").exists()
    (note,) = [note for note in _package([tmp_path / "digits"], tmp_path / "out", source).notes if "answers" in note]
    assert "host_networking, cooling" in note and "--answers FILE" in note


@pytest.mark.parametrize("word", STATUS_WORDS)
def test_the_status_is_spelt_as_in_the_round(tmp_path: Path, make_set: MakeSet, source: Path, word: str) -> None:
    folder = make_set(tmp_path / "set", submission_status=word)
    for number in range(5):
        path = folder / f"run_{number}" / "system.json"
        path.write_text(json.dumps(_json(path) | {"status": word}))
    for ruleset in ("2.0.0", "4.0.0"):
        report = _package([folder], tmp_path / ruleset, source, ruleset=ruleset)
        status = _json(report.folder / "systems" / "1xCPU-baseline.json")["status"]
        allowed = rules_named(ruleset).system_status_words
        assert status == (STATUS_WORDS[word] if allowed else word) and (not allowed or status in allowed)


def test_the_status_words_of_every_round_are_known() -> None:
    words = {word for rules in RULESETS.values() for word in rules.system_status_words}
    assert words == set(STATUS_WORDS.values())


def test_mlcommons_checker_takes_the_status_of_a_later_round(tmp_path: Path, make_set: MakeSet, source: Path) -> None:
    report = _package([make_set(tmp_path / "set")], tmp_path / "out", source, check=True, ruleset="4.0.0")
    assert report.official.verdict == "pass", report.official.messages
    assert not [finding for finding in report.findings if finding.rule == "system-status"]


def test_several_benchmarks_of_one_round_are_one_package(tmp_path: Path, make_set: MakeSet, source: Path) -> None:
    resnet = make_set(tmp_path / "resnet", platform="box")
    bert = make_set(tmp_path / "bert", platform="box", benchmark="bert", times=range(1, 11))
    report = _package([resnet, bert], tmp_path / "out", source, check=True, ruleset="2.0.0")
    assert report.official.verdict == "pass", report.official.messages
    assert [one.benchmark for one in report.scores] == ["resnet", "bert"]
    assert all(times.score_minutes for times in report.scores)
    assert [path.name for path in (report.folder / "systems").iterdir()] == ["box.json"]
    for benchmark, runs in (("resnet", 5), ("bert", 10)):
        assert len(list((report.folder / "results" / "box" / benchmark).iterdir())) == runs
        assert (_implementation(report, "timedrun", benchmark) / "timedrun" / "__init__.py").is_file()
    path = bert / "run_0" / "system.json"
    path.write_text(json.dumps(_json(path) | {"cooling": "other"}))
    with pytest.raises(PackageError, match="describe the system box differently .cooling"):
        _package([resnet, bert], tmp_path / "two", source, ruleset="2.0.0")


def test_the_median_window_of_more_runs_is_packaged(tmp_path: Path, make_set: MakeSet, source: Path) -> None:
    folder = make_set(tmp_path / "set", times=(10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0))
    report = _package([folder], tmp_path / "out", source, check=True)
    kept = [f"result_{n}.txt" for n in range(1, 6)]  # windows 0-4, 1-5, 2-6 have the means 12, 13, 14
    assert sorted(path.name for path in (report.folder / "results/1xCPU-baseline/resnet").iterdir()) == kept
    assert report.official.verdict == "pass" and report.scores[0].score_minutes == pytest.approx(13.0)
    assert not [finding for finding in report.findings if finding.rule == "figures"]
    (runs,) = _json(report.folder / "manifest.json")["runs"]
    assert runs["results"] == kept and runs["left_out"] == ["result_0.txt", "result_6.txt"]
    for text in ((report.folder / "README.md").read_text(), report.text):
        assert "result_0.txt, result_6.txt" in text and "median" in text
    assert {path.name for path in (_implementation(report) / "runs").iterdir()} == {f"run_{n}" for n in range(1, 6)}
    (again,) = score([report.folder])
    assert again.score_minutes == report.scores[0].score_minutes


def test_power_readings_of_the_packaged_runs_are_packaged(tmp_path: Path, make_set: MakeSet, source: Path) -> None:
    folder = make_set(tmp_path / "set")
    for number in range(7):
        of_run = folder / "power" / f"result_{number}"
        of_run.mkdir(parents=True)
        (of_run / "node_0.txt").write_text("reading\n")
    (folder / "power" / "result_0" / "notes.md").write_text("")
    report = _package([folder], tmp_path / "out", source)
    results = report.folder / "results" / "1xCPU-baseline" / "resnet"
    found = sorted(path.relative_to(results).as_posix() for path in results.rglob("node_*"))
    assert found == [f"power/result_{n}/node_0.txt" for n in range(5)] and not list(results.rglob("*.md"))


def test_a_task_outside_mlperf_is_packaged_without_mlcommons_checker(
    tmp_path: Path, make_set: MakeSet, source: Path
) -> None:
    rules = rules_named("beyond_mlperf").benchmarks["gpt_125m"]
    folder = make_set(
        tmp_path / "set",
        benchmark="gpt_125m",
        qualities=(9.0, rules.target),
        dataset=rules.dataset,
        times=[1.0] * rules.runs,
    )
    report = _package([folder], tmp_path / "out", source, check=True)
    assert report.official.verdict == "not run" and "have no rules" in report.official.messages[0]
    assert report.passed == (report.strict == "pass")
    assert "no round of MLPerf has the task gpt_125m" in (report.folder / "README.md").read_text()


def test_a_package_of_a_retired_benchmark_names_its_last_round_and_the_release_of_the_checker(
    tmp_path: Path, make_set: MakeSet, source: Path
) -> None:
    for ruleset in ("2.0.0", "4.0.0"):
        report = _package([make_set(tmp_path / f"set{ruleset}")], tmp_path / ruleset, source, ruleset=ruleset)
        text = (report.folder / "README.md").read_text()
        assert "retired resnet; its last round is v4.0." in text and "not adopted" in text
        assert f". training {ruleset}`" in text and f"`mlperf-logging=={rules_named(ruleset).checker}`" in text


@pytest.mark.processes
def test_the_runs_are_repeated_from_the_unpacked_archive_alone(tmp_path: Path) -> None:
    root = Path(__file__).parents[4]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*(sys.executable, "-m", "timedrun", "run", "image_classification", "smoke", "--data", "synthetic")]
        + [*("--threads", "1", "--seed", "7", "--results", str(tmp_path / "set"))],
        cwd=root,
        env=environment | {"PYTHONPATH": f"{root}{os.pathsep}{root / 'logging'}"},
        check=True,
        capture_output=True,
        timeout=100,
    )
    report = package([tmp_path / "set"], tmp_path / "out", submitter="unaffiliated", source=root, check=False)
    (tmp_path / "alone").mkdir()
    subprocess.run(["tar", "-xf", report.archive, "-C", tmp_path / "alone"], check=True, timeout=100)
    shutil.rmtree(report.folder)
    (script,) = (tmp_path / "alone").glob("*/benchmarks/*/implementations/*/run_and_time.sh")
    # A module of the checkout would say so here, were it found before the package's own.
    probe = tmp_path / "bin" / "python"
    probe.parent.mkdir()
    probe.write_text(
        f'#!/bin/sh\n{sys.executable} -c "import timedrun, mlevents, image_classification as b\n'
        f'print(timedrun.__file__, mlevents.__file__, b.__file__)" >> "{tmp_path}/imported"\n'
        f'exec {sys.executable} "$@"\n'
    )
    probe.chmod(0o755)
    subprocess.run(
        ["bash", str(script), "again"],
        cwd=tmp_path,
        env=environment | {"PATH": f"{probe.parent}:{os.environ['PATH']}"},
        check=True,
        capture_output=True,
        timeout=100,
    )
    places = (tmp_path / "imported").read_text().split()
    assert len(places) == 3 and all(Path(place).resolve().is_relative_to(tmp_path / "alone") for place in places)
    assert not list((tmp_path / "alone").rglob("__pycache__")), "running it leaves the package as it is"
    first, again = (
        [point.value for point in read(tmp_path / folder / "result_0.txt").quality] for folder in ("set", "again")
    )
    assert first == again, "on the same machine the same seed gives the same quality"


def test_a_known_defect_of_todays_rule_files_does_not_fail_a_package(
    tmp_path: Path, make_set: MakeSet, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    today = OfficialVerdict("fail", "package_checker", "mlperf-logging", "2.0.0", ("a key is missing",))
    for own, passed in (("pass", True), ("fail", False)):
        said = replace(today, own_round=own, defects=("a key was renamed afterwards",))
        monkeypatch.setattr(
            "timedrun.submission.packaging.package.check_package", lambda folder, rules, said=said: said
        )
        report = _package([make_set(tmp_path / own)], tmp_path / f"{own}_out", source, check=True)
        assert replace(report, strict="pass").passed is passed
        assert f"fail with today's rule files, {own} with the round's own" in report.text
        assert json.loads((report.folder / "manifest.json").read_text())["checked"]["own_round"] == own


def test_readme_and_description_name_every_setting_that_differs_from_the_baseline(
    tmp_path: Path, make_set: MakeSet, source: Path
) -> None:
    folder = make_set(tmp_path / "set")
    changes = {
        "name": "mine",
        "notes": "``` > spoofed",
        "global_batch": 777,
        "methods": [{"method": "ema", "half_life": 9}],
    }
    for number in range(5):
        path = folder / f"run_{number}" / "config.json"
        config = _json(path) | changes
        config["optimizer"] |= {"kind": "adamw", "epsilon": 0.125}
        config["data"]["order"] = "random```"
        config["methods"] = [{"method": "ema", "half_life": 9}]
        path.write_text(json.dumps(config))
    report = _package([folder], tmp_path / "out", source)
    described = _json(_implementation(report) / "1xCPU-baseline_timedrun.json")
    differs = described["differs_from_baseline"]
    assert described["baseline"] == "imagenet_baseline"
    assert {"global_batch", "optimizer.kind", "optimizer.epsilon", "data.order", "methods.ema.half_life"} <= set(
        differs
    )
    assert differs["global_batch"]["here"] == 777 and not {"name", "notes", "seed"} & set(differs)
    for readme in (report.folder / "README.md", _implementation(report) / "README.md"):
        text = readme.read_text()
        assert all(f"\n{setting} " in text for setting in differs) and text.count("```") % 2 == 0
        assert "random```" not in text and "spoofed" not in text


def test_a_set_by_the_baseline_or_of_a_benchmark_without_one_says_so(
    tmp_path: Path, make_set: MakeSet, source: Path
) -> None:
    report = _package([make_set(tmp_path / "set")], tmp_path / "out", source)
    assert "All settings are those of the config `imagenet_baseline`." in (report.folder / "README.md").read_text()
    folder = make_set(tmp_path / "other", config_name="other")
    for number in range(5):
        path = folder / f"run_{number}" / "config.json"
        path.write_text(json.dumps(_json(path) | {"dataset": "elsewhere"}))
    text = (_package([folder], tmp_path / "second", source).folder / "README.md").read_text()
    assert "has no baseline on" in text


def test_every_file_that_a_packaged_script_names_is_in_the_package(tmp_path: Path, make_set: MakeSet) -> None:
    root = Path(__file__).parents[4]
    report = _package([make_set(tmp_path / "set")], tmp_path / "out", root)
    systems = list(_implementation(report).glob("*.sh"))
    code = _implementation(report, "timedrun")
    assert {path.name for path in systems} == {"setup.sh", "init_datasets.sh", "run_and_time.sh"}
    seen = set()
    for script in [*systems, *(code / "scripts").iterdir()]:
        text = script.read_text().replace("run_$number", "run_0")
        named = re.findall(r"[\w./-]*[\w-]\.(?:sh|txt|toml|py|json|ya?ml|md|sbatch)\b|[\w./-]*Dockerfile", text)
        for name in (re.sub("^(here|root)?/", "", one) for one in named + re.findall(r"\$(here/\.\.[\w./-]+)", text)):
            # relative to the script, or to the source's root, into which the source's own scripts change
            assert (script.parent / name).exists() or script not in systems and (code / name).exists(), (script, name)
            seen.add(name)
    assert {"constraints.txt", "pyproject.toml", "scripts/setup.sh", "runs/run_0/config.json", "../timedrun"} <= seen


def test_set_up_installs_the_versions_of_the_runs(tmp_path: Path, make_set: MakeSet, source: Path) -> None:
    folder = make_set(tmp_path / "set")
    for number in range(5):
        (folder / f"run_{number}" / "environment.txt").write_text(
            "python 3.11\n\ninstalled distributions:\ntimedrun==0.1.0\nscikit_learn==1.9.1\ntorch==2.13.0+cpu\n"
        )
    system = _implementation(_package([folder], tmp_path / "out", source))
    pins = [line for line in (system / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert pins == ["scikit_learn==1.9.1", "torch==2.13.0"]
    probe = tmp_path / "bin" / "python"
    probe.parent.mkdir()
    probe.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > "{tmp_path}/called"\n')
    probe.chmod(0o755)
    path = f"{probe.parent}:{os.environ['PATH']}"
    subprocess.run(["bash", system / "setup.sh"], env={"PATH": path}, check=True, timeout=100)
    called = (tmp_path / "called").read_text().splitlines()
    assert called[:4] == ["-m", "pip", "install", "--constraint"] and Path(called[4]) == system / "constraints.txt"
    assert called[5].endswith("/timedrun[digits]")
