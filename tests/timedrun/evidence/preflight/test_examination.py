"""`timedrun preflight`: real configs pass with the expected notes; all faults are reported at once."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from judging.ground.errors import UsageError
from judging.ground.result_files import ResultPaths
from timedrun.evidence.preflight import dry_run_report, machine_checks
from timedrun.evidence.preflight.examination import Examination, PreflightReport
from timedrun.methods.training import number_formats
from timedrun.runner.benchmark import find
from timedrun.runner.run import page_cache
from timedrun.runner.run.worker import LaunchOptions

without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")


@pytest.fixture(autouse=True)
def plain_machine(tmp_path, monkeypatch, stay_frozen) -> None:
    """A working folder of its own, a quiet clock source and a page cache that cannot be dropped."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine_checks, "clock_problems", list)
    monkeypatch.setattr(page_cache, "obstacle", lambda: "not writable")


@pytest.fixture
def strict_only(monkeypatch) -> None:
    """No package and no tools of MLCommons, the slow half of a report; the CPU emulates low precision."""
    monkeypatch.setattr(dry_run_report, "_package", lambda *arguments: ([], []))
    monkeypatch.setattr("mlevents.mlcommons.check_logs", lambda logs, rules: [])
    monkeypatch.setattr(number_formats, "slowdown", lambda precision: 40.0)


def examination(name: str, *, ranks: int = 1, ruleset: str | None = None, **changes: Any) -> Examination:
    """Return the examination of the config `name` with some settings changed."""
    places = dict.fromkeys(("imagenet", "digits"), "image_classification")
    places |= dict.fromkeys(("openwebtext", "shakespeare"), "language_model.gpt")
    benchmark = find(places.get(name.partition("_")[0], "language_model"))
    config = replace(benchmark.config(name), emulation="allow")
    for field, value in changes.items():
        nested = isinstance(value, dict)
        config = replace(config, **{field: replace(getattr(config, field), **value) if nested else value})
    options = LaunchOptions(paths=ResultPaths(Path("runs") / name, 0))
    return Examination(benchmark, config, options, ranks=ranks, ruleset=ruleset)


def examined(name: str, **asked: Any) -> PreflightReport:
    return examination(name, **asked).report()


def found(report: PreflightReport, level: str) -> set[str]:
    """Return the rules of the report's findings of one level."""
    return {finding.rule for finding in report.findings if finding.level == level}


def words(report: PreflightReport, rule: str) -> str:
    """Return the messages and hints of a rule."""
    return "\n".join(f"{f.message}: {f.change}" for f in report.findings if f.rule == rule)


@without_cuda
@pytest.mark.parametrize(
    ("name", "ranks", "official", "notes"),
    [
        ("imagenet_methods", 8, "pass", {"device", "data", "evaluation-interval"}),
        ("openwebtext_baseline", 8, "not run", {"device", "data", "official", "evaluation-interval"}),
    ],
)
def test_a_real_config_passes_with_exactly_its_notes(name, ranks, official, notes):
    one = examined(name, ranks=ranks)
    assert found(one, "error") == set()
    assert found(one, "note") - {"package", "system-answers"} == notes
    assert (one.strict, one.official) == ("pass", official)
    for finding in one.findings:
        if finding.rule in ("device", "data"):
            assert finding.message.startswith("not checked here: ")
    assert "cooling" in words(one, "system-answers")
    assert "--clear-cache" in words(one, "cache-clear")
    assert list(Path.cwd().iterdir()) == []


def test_every_failure_of_a_closed_submission_comes_at_once():
    report = examined(
        "imagenet_methods",
        ranks=3,
        clear_cache=True,
        evaluation={"target": 75.9, "first": 100},
        submission={"division": "closed", "organization": ""},
        device="cpu",
        precision="fp16",
    )
    for rule, said in (
        ("settings", "not a percentage"),
        ("settings", "not divisible by 3 ranks"),
        ("device", "fp16 needs a CUDA device"),
        ("value-filled", "--submission.organization"),
        ("package", "the submitter's name is ''"),
        ("required-key", "weights_initialization is missing"),
        ("required-key", "--submission.division open"),
        ("vocabulary", "--optimizer.kind"),
        ("evaluation-interval", "use --evaluation.every 4"),
        ("evaluation-end", "use --evaluation.first"),
        ("init-limit", "30 minutes"),
        ("page-cache", ""),
        ("quality-range", ""),
    ):
        assert said in words(report, rule)
        assert rule in found(report, "error") | {"init-limit"}
    assert (report.strict, report.official) == ("fail", "fail")
    assert list(Path.cwd().iterdir()) == []


LOW = {"evaluation": {"target": 0.7}}


@without_cuda
@pytest.mark.usefixtures("strict_only")
@pytest.mark.parametrize(
    ("name", "settings", "errors", "said"),
    [
        ("shakespeare_modern", {}, set(), {"batch": ""}),
        # A target below the benchmark's own fails on its own data only.
        ("wikipedia_methods", LOW, {"target-reached"}, {"target-reached": "use --evaluation.target 0.72"}),
        ("digits_baseline", {"global_batch": 480}, set(), {"batch": "an epoch leaves out 417 of 897 samples"}),
        ("digits_baseline", {"global_batch": 64}, set(), {"batch": ""}),
    ],
)
def test_a_report_has_exactly_these_errors(name, settings, errors, said):
    report = examined(name, **settings)
    assert found(report, "error") == errors
    for rule, text in said.items():
        assert text in words(report, rule) and bool(text) == bool(words(report, rule))


@without_cuda
@pytest.mark.usefixtures("strict_only")
def test_what_another_machine_needs_is_a_note_and_what_this_one_lacks_an_error():
    flash = {"speed": {"attention": "flash_attn"}}
    for settings, level in ((flash, "note"), (flash | {"device": "cpu"}, "error")):
        findings = examination("wikipedia_methods", **settings).data_findings("")
        (lacks,) = [finding for finding in findings if "attention 'flash_attn' cannot be used" in finding.message]
        assert lacks.level == level and lacks.message.startswith("not checked here: ") == (level == "note")
    refused = {"emulation": "refuse"}
    cases = ({}, []), (refused, ["error"]), (refused | {"device": "cuda"}, ["note"]), (refused | {"ranks": 8}, ["note"])
    for settings, levels in cases:
        findings = examination("imagenet_baseline", **settings).device_findings()
        assert [finding.level for finding in findings] == levels


@pytest.mark.usefixtures("strict_only")
def test_a_newer_round_lacks_no_key_and_names_the_rulesets_with_the_benchmark():
    report = examined("wikipedia_methods", ruleset="6.1.0")
    assert words(report, "required-key") == ""
    assert "use --ruleset 2.0.0 or" in words(report, "benchmark-known")
    with pytest.raises(UsageError, match=r"no ruleset '9\.9\.9'"):
        examined("digits_methods", ruleset="9.9.9")


def test_impossible_settings_are_reported_without_a_dry_run():
    one = examined("digits_methods", evaluation={"every": 0})
    assert {"settings", "dry-run"} <= found(one, "error") and one.strict == "not run"
    assert "no dry run" in one.text
    none = examined("digits_methods", global_batch=0)
    assert "needs at least 1 sample" in words(none, "settings") and none.strict == "not run"


@pytest.mark.usefixtures("strict_only")
def test_the_command_prints_one_object_in_the_form_of_check(told):
    (report,) = told("preflight", "image_classification", "methods")
    assert {"path", "strict", "official", "ruleset", "checker", "findings"} <= report.keys()
    verdict = (report["path"], report["strict"], report["official"], report["runs"])
    assert verdict == ("digits_methods", "pass", "not run", 5)
    assert {"level", "rule", "message", "line", "change"} <= report["findings"][0].keys()
    notes = {finding["rule"] for finding in report["findings"] if finding["level"] == "note"}
    assert notes - {"package", "system-answers"} == {"demonstration"}
