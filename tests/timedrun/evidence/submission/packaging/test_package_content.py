"""Content of packages: origin of the results, answers, and repeatable runs."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from judging.ground.errors import UsageError
from judging.ground.result_files import read_json
from judging.scoring.score import score
from mlevents.mlcommons import OfficialVerdict
from mlevents.record import read
from mlevents.rounds import RULESETS
from mlevents.rounds import ruleset as rules_named
from tests.judging.conftest import change_json
from tests.timedrun.evidence.submission.conftest import described, implementation, probe_python
from timedrun.evidence.submission.packaging.result_folder import STATUS_WORDS
from timedrun.runner.provenance.system_answers import Answers

ROOT = Path(__file__).parents[5]


def test_image_data_and_environment_of_the_runs_are_in_the_package(result_set, packaged):
    digest, data = "sha256:" + "a" * 64, {"name": "imagenet", "sha256": "b" * 64, "of": "every file"}
    change_json(*result_set.glob("run_*/provenance.json"), image_digest=digest, data=data, dirty=False)
    report = packaged(result_set)
    values = described(report)
    (manifest,) = read_json(report.folder / "manifest.json")["runs"]
    for origin in (values, manifest):
        assert origin["images"] == [digest] and origin["data"] == [data] and origin["dirty"] == [False]
        assert origin["results"] == [f"result_{n}.txt" for n in range(5)] and len(origin["environments_sha256"]) == 1
    assert digest in (implementation(report) / "README.md").read_text() and report.notes == []
    weights = {"starting_weights_filename", "weight_transformations", "weight_data_types", "input_data_types"}
    assert weights < set(values) and values["retraining"].startswith("none")


def test_answers_fill_a_description_and_never_contradict(result_set, packaged, refuses):
    change_json(result_set / "run_0" / "system.json", cooling="")
    given = Answers(path=Path("answers.json"), given={"cooling": "air", "hw_notes": "warm"}, override={})
    description = read_json(packaged(result_set, answers=given).folder / "systems" / "1xCPU-baseline.json")
    assert description["cooling"] == "air" and description["hw_notes"] == "warm" and len(description) == 33
    wrong = Answers(path=Path("answers.json"), given={"framework": "Other 1.0"}, override={})
    words = "set: answers.json: framework was detected as 'PyTorch"
    refuses(result_set, words=words, kind=UsageError, out="refused", answers=wrong)


def test_open_questions_refuse_all_but_demonstrations(tmp_path, make_set, packaged, refuses):
    digits = {"dataset": "digits", "quality_target": 0.95, "qualities": (0.96,), "times": (0.1, 0.2, 0.3)}
    for name, logged in (("imagenet", {}), ("digits", digits)):
        folder = make_set(tmp_path / name, **logged)
        change_json(folder / "run_0" / "system.json", cooling="", host_networking="tbd", hw_notes="")
    said = refuses(tmp_path / "imagenet", words=r"1xCPU-baseline: host_networking")
    assert ": cooling" in said and "--answers FILE" in said and "hw_notes" not in said
    (note,) = [note for note in packaged(tmp_path / "digits").notes if "answers" in note]
    assert "host_networking, cooling" in note and "--answers FILE" in note


@pytest.mark.parametrize("word", STATUS_WORDS)
def test_the_status_is_spelt_as_in_the_round(tmp_path, make_set, packaged, word):
    folder = make_set(tmp_path / "set", times=(1.0,), submission_status=word)
    change_json(folder / "run_0" / "system.json", status=word)
    for ruleset in ("2.0.0", "4.0.0"):
        report = packaged(folder, out=ruleset, ruleset=ruleset)
        status = read_json(report.folder / "systems" / "1xCPU-baseline.json")["status"]
        allowed = rules_named(ruleset).system_status_words
        assert status == (STATUS_WORDS[word] if allowed else word) and (not allowed or status in allowed)


def test_the_status_words_of_every_round_are_known():
    words = {word for rules in RULESETS.values() for word in rules.system_status_words}
    assert words == set(STATUS_WORDS.values())


def test_several_benchmarks_of_one_round_are_one_package(tmp_path, make_set, packaged, refuses):
    resnet = make_set(tmp_path / "resnet", platform="box")
    bert = make_set(tmp_path / "bert", platform="box", benchmark="bert", times=range(1, 11))
    report = packaged(resnet, bert, check=True, ruleset="2.0.0")
    assert report.official.verdict == "pass", report.official.messages
    assert [score.benchmark for score in report.scores] == ["resnet", "bert"]
    assert all(score.score_minutes for score in report.scores)
    assert [path.name for path in (report.folder / "systems").iterdir()] == ["box.json"]
    for benchmark, runs in (("resnet", 5), ("bert", 10)):
        assert len(list((report.folder / "results" / "box" / benchmark).iterdir())) == runs
        assert (implementation(report, "timedrun", benchmark) / "timedrun" / "__init__.py").is_file()
    change_json(bert / "run_0" / "system.json", cooling="other")
    refuses(resnet, bert, words="describe the system box differently .cooling", out="two", ruleset="2.0.0")


def test_the_median_window_is_packaged_with_its_power(tmp_path, make_set, packaged):
    folder = make_set(tmp_path / "set", times=(10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0))
    for number in range(7):
        of_run = folder / "power" / f"result_{number}"
        of_run.mkdir(parents=True)
        (of_run / "node_0.txt").write_text("reading\n")
    (folder / "power" / "result_1" / "notes.md").write_text("")
    report = packaged(folder, check=True)
    kept = [f"result_{n}.txt" for n in range(1, 6)]  # windows 0-4, 1-5, 2-6 have the means 12, 13, 14
    results = report.folder / "results" / "1xCPU-baseline" / "resnet"
    assert sorted(path.relative_to(results).as_posix() for path in results.rglob("*.*")) == [
        *(f"power/result_{n}/node_0.txt" for n in range(1, 6)),
        *kept,
    ]
    assert report.official.verdict == "pass" and report.scores[0].score_minutes == pytest.approx(13.0)
    assert not [finding for finding in report.findings if finding.rule == "figures"]
    (runs,) = read_json(report.folder / "manifest.json")["runs"]
    assert runs["results"] == kept and runs["left_out"] == ["result_0.txt", "result_6.txt"]
    for text in ((report.folder / "README.md").read_text(), report.text):
        assert "result_0.txt, result_6.txt" in text and "median" in text
    assert {path.name for path in (implementation(report) / "runs").iterdir()} == {f"run_{n}" for n in range(1, 6)}
    (again,) = score([report.folder])
    assert again.score_minutes == report.scores[0].score_minutes


def test_a_task_outside_mlperf_is_packaged_unchecked(tmp_path, make_set, packaged):
    rules = rules_named("beyond_mlperf").benchmarks["gpt_125m"]
    logged = {"benchmark": "gpt_125m", "qualities": (9.0, rules.target), "dataset": rules.dataset}
    report = packaged(make_set(tmp_path / "set", times=[1.0] * rules.runs, **logged), check=True)
    assert report.official.verdict == "not run" and "have no rules" in report.official.messages[0]
    assert report.passed == (report.strict == "pass")
    assert "no round of MLPerf has the task gpt_125m" in (report.folder / "README.md").read_text()


@pytest.mark.processes
def test_the_runs_are_repeated_from_the_unpacked_archive_alone(tmp_path, packaged):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "timedrun", "run", "image_classification", "smoke", "--data", "synthetic"]
    subprocess.run(
        [*command, "--threads", "1", "--seed", "7", "--results", str(tmp_path / "set")],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'logging'}"},
        check=True,
        capture_output=True,
        timeout=100,
    )
    report = packaged(tmp_path / "set", submitter="unaffiliated", source=ROOT)
    (tmp_path / "alone").mkdir()
    subprocess.run(["tar", "-xf", report.archive, "-C", tmp_path / "alone"], check=True, timeout=100)
    shutil.rmtree(report.folder)
    (script,) = (tmp_path / "alone").glob("*/benchmarks/*/implementations/*/run_and_time.sh")
    # A module of the checkout would say so here, were it found before the package's own.
    path = probe_python(
        tmp_path,
        f'{sys.executable} -c "import timedrun, mlevents, judging.ground as j, image_classification as b\n'
        f'print(timedrun.__file__, mlevents.__file__, j.__path__[0], b.__file__)" >> "{tmp_path}/imported"\n'
        f'exec {sys.executable} "$@"\n',
    )
    again = ["bash", str(script), "again"]
    subprocess.run(again, cwd=tmp_path, env=environment | {"PATH": path}, check=True, capture_output=True, timeout=100)
    places = (tmp_path / "imported").read_text().split()
    assert len(places) == 4 and all(Path(place).resolve().is_relative_to(tmp_path / "alone") for place in places)
    assert not list((tmp_path / "alone").rglob("__pycache__")), "running it leaves the package as it is"
    first, second = (
        [point.value for point in read(tmp_path / name / "result_0.txt").quality] for name in ("set", "again")
    )
    assert first == second, "on the same machine the same seed gives the same quality"


@pytest.mark.parametrize(("own", "passed"), [("pass", True), ("fail", False)])
def test_a_known_defect_of_todays_rule_files_does_not_fail_a_package(result_set, packaged, monkeypatch, own, passed):
    today = OfficialVerdict("fail", "package_checker", "mlperf-logging", "2.0.0", ("a key is missing",))
    said = replace(today, own_round=own, defects=("a key was renamed afterwards",))
    monkeypatch.setattr("timedrun.evidence.submission.packaging.package.check_package", lambda folder, rules: said)
    report = packaged(result_set, check=True)
    assert replace(report, strict="pass").passed is passed
    assert f"fail with today's rule files, {own} with the round's own" in report.text
    assert read_json(report.folder / "manifest.json")["checked"]["own_round"] == own


def test_every_file_that_a_packaged_script_names_is_in_the_package(result_set, packaged):
    report = packaged(result_set, source=ROOT)
    systems = list(implementation(report).glob("*.sh"))
    code = implementation(report, "timedrun")
    assert {path.name for path in systems} == {"setup.sh", "init_datasets.sh", "run_and_time.sh"}
    seen = set()
    for script in [*systems, *(code / "scripts").iterdir()]:
        text = script.read_text().replace("run_$number", "run_0")
        named = re.findall(r"[\w./-]*[\w-]\.(?:sh|txt|toml|py|json|ya?ml|md|sbatch)\b|[\w./-]*Dockerfile", text)
        for name in named + re.findall(r"\$(here/\.\.[\w./-]+)", text):
            name = re.sub("^(here|root)?/", "", name)
            # relative to the script, or to the source's root, into which the source's own scripts change
            assert (script.parent / name).exists() or script not in systems and (code / name).exists(), (script, name)
            seen.add(name)
    assert {"constraints.txt", "pyproject.toml", "scripts/setup.sh", "runs/run_0/config.json", "../timedrun"} <= seen
