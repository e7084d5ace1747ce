"""Submission folders: found, listed and checked as a whole, whatever lies in them; each damage has its finding."""

import json
import os
import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from mlevents import mlcommons
from mlevents.checks.result_set import check_set
from mlevents.event import Finding
from mlevents.mlcommons.process import Job, Workplace
from mlevents.package_checker import files
from mlevents.package_checker.files import check_files, list_folder
from mlevents.package_checker.result_folders import sets_in
from mlevents.package_checker.tree import check_tree, submission_folders
from mlevents.record import read
from mlevents.summary import summarize
from tests.mlevents.conftest import put
from tests.mlevents.package_checker.package_mutations import (
    IMPLEMENTATIONS,
    MUTATIONS,
    RESULTS,
    SYSTEM,
    description,
    edit_logs,
    mutated,
    tree_findings,
    write_good_package,
    write_manifest,
)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A submission with nothing wrong in it."""
    return write_good_package(tmp_path_factory.mktemp("good") / "Nobody")


@pytest.fixture
def package(good: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(good, tmp_path / "Nobody"))


def brief(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.level, finding.rule) for finding in findings]


def strict(folder: Path) -> list[Finding]:
    """All findings about a submission but those of single logs."""
    sets = sets_in(list_folder(folder))
    of_sets = [check_set([summarize(read(file)) for file in result_set.files], "2.0.0") for result_set in sets]
    return [*tree_findings(folder), *chain.from_iterable(of_sets)]


def test_nothing_is_wrong_with_a_good_package_and_its_manifest(good, tmp_path):
    folder = mutated(good, tmp_path, write_manifest)
    for package in (good, folder):
        assert [str(finding) for finding in strict(package) if finding.rule != "convergence"] == []


def test_the_strict_checks_name_the_damage(good, tmp_path):
    wrong = []
    for name, (change, rule, level, _) in MUTATIONS.items():
        folder = mutated(good, tmp_path / name.replace("/", ""), change)
        found = strict(folder)
        errors = [str(finding) for finding in found if finding.level == "error"]
        if (level, rule) not in brief(found) or (level == "warning" and errors):
            wrong.append((name, [str(finding) for finding in found]))
        for finding in found:
            assert str(finding).isprintable(), name
            assert finding.path is None or finding.path.startswith(str(folder)), name
    assert not wrong


@pytest.mark.processes
def test_their_package_checker_gives_the_known_verdict(good):
    known = {name: official for name, (_, _, _, official) in MUTATIONS.items() if official is not None}
    tool = mlcommons.Tool("package_checker", "2.0.0")
    with Workplace() as place:  # one child for all
        folders = [mutated(good, place.copy / name.replace("/", ""), MUTATIONS[name][0]) for name in known]
        options = ("training", tool.ruleset, "--log_output", os.devnull)
        answers = place.run([Job(tool.name, (str(folder), *options), 60) for folder in folders])
        verdicts = [tool.judged(answer, place, folder) for answer, folder in zip(answers, folders, strict=True)]
    found = {
        name: "breaks off" if verdict.messages[:1] and "was aborted" in verdict.messages[0] else verdict.verdict
        for name, verdict in zip(known, verdicts, strict=True)
    }
    assert found == known


def test_submissions_are_found_at_a_path_and_up_to_three_levels_below(good, tmp_path):
    places = [tmp_path / "Nobody", tmp_path / "rounds/v2.0/open/Nobody", tmp_path / "rounds/v2.0/closed/Nobody"]
    for place in places:
        shutil.copytree(good, place)
    too_deep = Path(shutil.copytree(good, tmp_path / "rounds/a/b/c/d/Nobody"))
    (tmp_path / "link").symlink_to(good)
    assert submission_folders(places[0]) == [places[0]]
    assert submission_folders(tmp_path / "rounds/v2.0") == sorted(places[1:])
    assert submission_folders(tmp_path) == [places[0]]
    assert too_deep not in submission_folders(tmp_path / "rounds")
    assert submission_folders(tmp_path / "nothing") == []
    results_alone = tmp_path / "rounds/results_alone"
    shutil.copytree(good / "results", results_alone / "results")
    (results_alone / "benchmarks").mkdir()
    (results_alone / "benchmarks/speed.py").write_text("")
    assert submission_folders(results_alone) == []


def test_sets_are_listed_by_system_and_benchmark_in_the_order_people_count(package):
    for number in range(5, 12):
        shutil.copy(package / RESULTS / "result_0.txt", package / RESULTS / f"result_{number}.txt")
    (result_set,) = sets_in(list_folder(package))
    assert (result_set.system, result_set.benchmark, result_set.folder) == (SYSTEM, "resnet", package / RESULTS)
    assert [file.name for file in result_set.files] == [f"result_{number}.txt" for number in range(12)]


def test_names_with_a_stamp_are_fine(package):
    for number in range(5):
        path = package / RESULTS / f"result_{number}.txt"
        path.rename(path.with_name(f"result_220415-093{number}_0{number + 1}.txt"))
    assert tree_findings(package) == []


def test_without_a_ruleset_each_benchmark_has_its_default(package):
    assert tree_findings(package, None) == []
    with pytest.raises(ValueError, match="no ruleset"):
        tree_findings(package, "1.2.3")
    (package / RESULTS).rename(package / f"results/{SYSTEM}/gnmt")
    assert ("error", "benchmark-folder") in brief(tree_findings(package, None))


def test_the_round_of_the_logs_is_that_of_the_description(package):
    def errors_of_the_description(date_ms):
        edit_logs(package, lambda records: [record.update(time_ms=date_ms) for record in records])
        place = str(package / "systems" / f"{SYSTEM}.json")
        return [f.message for f in tree_findings(package, None) if f.path == place and f.level == "error"]

    assert errors_of_the_description(1_653_000_000_000) == []  # May 2022: v2.0
    (message,) = errors_of_the_description(1_716_000_000_000)  # May 2024: v4.0, of other status words
    assert "in v4.0 not one of 'Available on-premise'" in message


def test_a_disagreement_is_told_once_with_the_line_of_the_log_and_a_renamed_folder_doubted(package):
    edit_logs(package, lambda records: put(records, "submission_org", "Rival"))
    (finding,) = [finding for finding in tree_findings(package) if finding.level == "error"]
    assert finding.rule == "organization-agrees" and "4 more" in finding.message
    line = (package / RESULTS / "result_0.txt").read_text().splitlines()[finding.line - 1]
    assert finding.path == str(package / RESULTS / "result_0.txt") and '"submission_org"' in line
    edit_logs(package, lambda records: put(records, "submission_org", "Nobody"))
    renamed = package.rename(package.with_name("Somebody"))
    assert set(brief(tree_findings(renamed))) == {("warning", "organization-agrees")}


def test_a_script_shared_between_systems_and_a_bypass_are_named_with_their_place(package):
    scripts = package / IMPLEMENTATIONS
    (scripts / SYSTEM / "setup.sh").rename(scripts / "torch/setup.sh")
    (finding,) = tree_findings(package)
    assert finding.level == "warning" and "setup.sh is in" in finding.message
    (package / "package_checker_params").write_text("quiet\n\nrcp-bert-train-samples\n")
    findings = [(finding.rule, finding.line) for finding in tree_findings(package) if finding.line]
    assert findings == [("checker-bypass", 1), ("checker-bypass", 3)]


@pytest.mark.parametrize(
    ("logged", "described", "agree"),
    [
        *(("onprem", "onprem", True), ("onprem", "Available on-premise", True), ("cloud", "Available cloud", True)),
        *(("cloud", "available", True), ("research", "Research, Development, or Internal (RDI)", True)),
        *(("onprem", "Available cloud", False), ("onprem", "Preview", False), ("research", "onprem", False)),
    ],
)
def test_the_two_vocabularies_of_status_are_compared_by_meaning(package, logged, described, agree):
    edit_logs(package, lambda records: put(records, "submission_status", logged))
    (package / f"systems/{SYSTEM}.json").write_text(json.dumps(description(status=described)))
    assert (("error", "status-agrees") in brief(tree_findings(package))) != agree


def test_a_folder_that_cannot_be_listed_is_not_said_to_be_empty(package, monkeypatch):
    def scandir(path):
        if path == package / "systems":
            raise PermissionError(13, "Permission denied")
        return real(path)

    real = os.scandir
    monkeypatch.setattr(files.os, "scandir", scandir)
    findings = tree_findings(package)
    assert ("error", "unreadable") in brief(findings)
    assert not any("empty" in finding.message for finding in findings)


def test_of_very_many_findings_of_one_rule_a_hundred_are_told_and_the_rest_counted(package):
    for number in range(130):
        (package / RESULTS / f"note_{number}").write_text("")
    findings = [finding for finding in tree_findings(package) if finding.rule == "unknown-file"]
    assert len(findings) == 101 and findings[-1].message.startswith("and 30 more")


def test_a_tree_deeper_than_any_path_may_be_long_ends(tmp_path):
    here = os.open(tmp_path, os.O_RDONLY)
    try:
        for _ in range(100):
            os.mkdir("d" * 200, dir_fd=here)
            below = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
    finally:
        os.close(here)
    rules = {rule for _, rule in brief(check_files(list_folder(tmp_path)))}
    assert rules and rules <= {"unreadable", "special-file"}


def test_links_that_loop_pipes_and_odd_names_neither_hang_nor_raise(package):
    (package / "systems/loop.json").symlink_to("loop.json")
    (package / "results/up").symlink_to("..")
    os.mkfifo(package / f"systems/{SYSTEM}2.json")
    os.mkfifo(package / RESULTS / "result_7.txt")
    os.mkfifo(package / "manifest.json")
    with open(os.fsencode(package / RESULTS) + b"/result_\xff\n.txt", "w") as file:
        file.write("x")
    findings = tree_findings(package)
    assert {"link", "special-file", "file-name", "result-no-log"} <= {finding.rule for finding in findings}
    assert all(str(finding).isprintable() for finding in findings)


def test_a_folder_that_is_none_or_a_file_has_findings(tmp_path):
    (tmp_path / "file").write_text("")
    for name, rule in (("file", "unreadable"), ("none", "unreadable"), (".", "tree-layout")):
        assert ("error", rule) in brief(check_tree(tmp_path / name, {}, None))


def test_published_packages_lack_only_the_runs_and_the_source_that_the_archives_leave_out(published_sample):
    for round_, benchmark in (("v2.0", "resnet"), ("v2.1", "bert")):
        folder = published_sample[round_]
        assert submission_folders(folder.parent) == [folder]
        assert [result_set.system for result_set in sets_in(list_folder(folder))] == [
            "8xA100_80GB-baseline",
            "8xA100_80GB-methods",
        ]
        findings = tree_findings(folder, f"{round_[1:]}.0")
        errors = [finding for finding in findings if finding.level == "error"]
        assert [finding.rule for finding in errors] == ["source-missing"]
        assert f"benchmarks/{benchmark}" in errors[-1].message
        # The archives lack LICENSE and README; in each description 11 answers are empty and number_of_nodes is 1.0.
        assert sorted(finding.rule for finding in findings if finding.level == "warning") == [
            *["documents"] * 2,
            *["system-answers"] * 2,
            *["system-text"] * 2,
        ]


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
    ("key", "value"),
    [("accelerator_model_name", "Example A80"), ("accelerator_model_name", 3), ("accelerators_per_node", "0")]
    + [("number_of_nodes", "many"), ("number_of_nodes", 1e308)],
)
def test_nothing_is_said_of_unknown_accelerators(good, tmp_path, key, value):
    assert found(good, tmp_path / "unknown", hours=0.01, **{key: value}) == []
