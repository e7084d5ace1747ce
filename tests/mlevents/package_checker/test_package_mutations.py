"""Every damage to a good submission gets its strict finding; MLCommons' package checker says of it what is known."""

from pathlib import Path

import pytest

from mlevents import mlcommons
from mlevents.checks.result_set import check_set
from mlevents.event import Finding
from mlevents.package_checker.files import list_folder
from mlevents.package_checker.result_folders import sets_in
from mlevents.package_checker.tree import check_tree
from mlevents.record import read, result_files
from mlevents.summary import summarize
from tests.mlevents.package_checker.package_mutations import MUTATIONS, Mutation, mutated, write_manifest


def strict(folder: Path) -> list[Finding]:
    """All findings about a submission but those of single logs."""
    summaries = {path: summarize(read(path)) for path in result_files(folder)}
    findings = check_tree(folder, summaries, "2.0.0")
    for result_set in sets_in(list_folder(folder)):
        findings += check_set([summaries[file] for file in result_set.files if file in summaries], "2.0.0")
    return findings


def test_nothing_is_wrong_with_a_good_package_and_its_manifest(good, tmp_path):
    folder = mutated(good, tmp_path, Mutation("manifest", write_manifest, "", "error", None))
    for package in (good, folder):
        assert [str(finding) for finding in strict(package) if finding.rule != "convergence"] == []


def test_the_strict_checks_name_the_damage(good, tmp_path):
    wrong = []
    for number, mutation in enumerate(MUTATIONS):
        folder = mutated(good, tmp_path / str(number), mutation)
        found = strict(folder)
        errors = [str(finding) for finding in found if finding.level == "error"]
        named = (mutation.rule, mutation.level) in {(finding.rule, finding.level) for finding in found}
        if not named or (mutation.level == "warning" and errors):
            wrong.append((mutation.name, [str(finding) for finding in found]))
        for finding in found:
            assert str(finding).isprintable(), mutation.name
            assert finding.path is None or finding.path.startswith(str(folder)), mutation.name
    assert not wrong


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_their_package_checker_gives_the_known_verdict(good, tmp_path):
    wrong = []
    for number, mutation in enumerate(mutation for mutation in MUTATIONS if mutation.official is not None):
        verdict = mlcommons.check_package(mutated(good, tmp_path / str(number), mutation), "2.0.0")
        broke_off = any(message.startswith("package_checker was aborted") for message in verdict.messages)
        expected = ("fail", True) if mutation.official == "breaks off" else (mutation.official, False)
        if (verdict.verdict, broke_off) != expected:
            wrong.append((mutation.name, verdict.verdict, verdict.messages))
    assert not wrong
