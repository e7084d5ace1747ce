"""`timedrun preflight`: real configs pass with the expected notes; all faults are reported at once."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from judging.ground.errors import UsageError
from judging.ground.result_files import ResultPaths
from timedrun.benchmark import find
from timedrun.config import RunConfig
from timedrun.methods import LabelSmoothing, MixUp
from timedrun.preflight import dry_run_report, machine_checks
from timedrun.preflight.examination import Examination, PreflightReport, device_memory
from timedrun.preflight.machine_report import machine
from timedrun.run import page_cache
from timedrun.run.worker import LaunchOptions
from timedrun.training import number_formats

without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")


@pytest.fixture(autouse=True)
def plain_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stay_frozen: None) -> None:
    """A working folder of its own, a quiet clock source and a page cache that cannot be dropped."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine_checks, "clock_problems", list)
    monkeypatch.setattr(page_cache, "obstacle", lambda: "not writable")


@pytest.fixture
def strict_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """No package and no tools of MLCommons, the slow half of a report."""
    monkeypatch.setattr(dry_run_report, "_package", lambda *arguments: ([], []))
    monkeypatch.setattr("mlevents.mlcommons.check_logs", lambda logs, rules: [])


def examined(name: str, *, ranks: int = 1, ruleset: str | None = None, **changes: Any) -> PreflightReport:
    """Return the report on the config `name` with some settings changed."""
    places = dict.fromkeys(("imagenet", "digits"), "image_classification")
    places |= dict.fromkeys(("openwebtext", "shakespeare"), "language_model.gpt")
    config = find(places.get(name.partition("_")[0], "language_model")).config(name)
    for field, value in changes.items():
        nested = isinstance(value, dict)
        config = replace(config, **{field: replace(getattr(config, field), **value) if nested else value})
    return examination(config, ranks=ranks, ruleset=ruleset).report()


def examination(config: RunConfig, *, emulation: bool = True, **asked: Any) -> Examination:
    paths = ResultPaths(Path("runs") / config.name, 0)
    options = LaunchOptions(paths=paths, emulated_precision=emulation)
    return Examination(find(config.benchmark), config, options, **asked)


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


@pytest.mark.parametrize(
    ("package", "name"), [("language_model", "topics_methods"), ("language_model.gpt", "shakespeare_modern")]
)
@pytest.mark.usefixtures("strict_only")
def test_the_other_configs_pass_all_checks_of_their_logs(package, name):
    report = examined(name)
    assert report.benchmark == package
    assert found(report, "error") == set()


def test_every_failure_of_a_closed_submission_comes_at_once():
    Path("runs/imagenet_methods").mkdir(parents=True)
    Path("runs/imagenet_methods/result_0.txt").write_text(':::MLLOG {"key": "seed", "value": 1}\n')
    report = examined(
        "imagenet_methods",
        ranks=3,
        clear_cache=True,
        evaluation={"target": 75.9, "first": 100},
        submission={"division": "closed", "organization": "", "platform": "a/b"},
        device="cpu",
        precision="fp16",
    )
    for rule, said in (
        ("settings", "not a percentage"),
        ("settings", "not divisible by 3 ranks"),
        ("device", "fp16 needs a CUDA device"),
        ("value-filled", "--submission.organization"),
        ("folder-name", "submission.platform is 'a/b'"),
        ("required-key", "weights_initialization is missing"),
        ("required-key", "--submission.division open"),
        ("vocabulary", "--optimizer.kind"),
        ("evaluation-interval", "use --evaluation.every 4"),
        ("evaluation-end", "use --evaluation.first"),
        ("results", "already holds results: result_0.txt"),
        ("init-limit", "30 minutes"),
        ("page-cache", ""),
        ("quality-range", ""),
        ("compliance_checker", ""),
        ("package_checker", ""),
    ):
        assert said in words(report, rule)
        assert rule in found(report, "error") | {"results", "init-limit"}
    assert (report.strict, report.official) == ("fail", "fail")
    assert sorted(path.name for path in Path.cwd().rglob("*")) == ["imagenet_methods", "result_0.txt", "runs"]


@pytest.mark.usefixtures("strict_only")
def test_a_target_below_the_benchmarks_own_fails_on_its_own_data_only_whatever_else_is_wrong():
    report = examined("wikipedia_methods", submission={"status": "Available"}, evaluation={"target": 0.7})
    assert found(report, "error") == {"vocabulary", "target-reached"}
    assert "use --evaluation.target 0.72" in words(report, "target-reached")
    said = words(report, "vocabulary")
    assert "'Available' is not one of: cloud, onprem, preview, research: use --submission.status" in said
    assert found(examined("wikipedia_methods", evaluation={"target": 0.7}, dataset="a_trial"), "error") == set()


def test_a_newer_round_lacks_no_key_and_names_the_rulesets_with_the_benchmark(monkeypatch):
    monkeypatch.setattr("mlevents.mlcommons.check_logs", lambda logs, rules: [])
    report = examined("wikipedia_methods", ruleset="6.1.0")
    assert words(report, "required-key") == ""
    assert "use --ruleset 1.0.0 or 1.1.0 or 2.0.0 or" in words(report, "benchmark-known")
    with pytest.raises(UsageError, match=r"no ruleset '9\.9\.9'"):
        examined("digits_methods", ruleset="9.9.9")


def test_impossible_settings_are_reported_without_a_dry_run():
    one = examined("digits_methods", evaluation={"every": 0})
    assert {"settings", "dry-run"} <= found(one, "error")
    assert one.strict == "not run"
    assert "no dry run" in one.text
    none = examined("digits_methods", global_batch=0)
    assert "needs at least 1 sample" in words(none, "settings") and none.strict == "not run"


@without_cuda
@pytest.mark.usefixtures("strict_only")
def test_a_requirement_of_another_machine_is_a_note():
    one = examined("wikipedia_methods", speed={"attention": "flash_attn"})
    assert found(one, "error") == set()
    assert "not checked here: attention 'flash_attn' cannot be used" in words(one, "data")
    assert "data" in found(examined("wikipedia_methods", speed={"attention": "flash_attn"}, device="cpu"), "error")


@without_cuda
@pytest.mark.usefixtures("strict_only")
def test_a_run_here_in_a_format_that_the_cpu_emulates_is_an_error_and_one_on_another_machine_a_note(monkeypatch):
    monkeypatch.setattr(number_formats, "slowdown", lambda precision: 40.0)
    config = find("image_classification").config("imagenet_baseline")
    here = examination(config, emulation=False).report()
    assert found(here, "error") == {"device"} and "--precision fp32" in words(here, "device")
    for elsewhere in (
        examination(replace(config, device="cuda"), emulation=False),
        examination(config, emulation=False, ranks=8),
        examination(config, emulation=True),
    ):
        assert found(elsewhere.report(), "error") == set()


def test_a_benchmark_without_a_plan_or_rules_is_named(monkeypatch):
    benchmark = find("image_classification")
    config = benchmark.config("digits_methods")
    monkeypatch.delattr(benchmark.module("run_info"), "plan")
    with pytest.raises(UsageError, match="image_classification.run_info has no plan"):
        benchmark.plan(config, examination(config).planned, None)
    assert examination(config, ranks=5).planned.world_size == 1


def test_the_command_prints_one_object_in_the_form_of_check(told):
    (report,) = told("preflight", "image_classification", "methods")
    assert {"path", "strict", "official", "ruleset", "checker", "findings"} <= report.keys()
    verdict = (report["path"], report["strict"], report["official"], report["runs"])
    assert verdict == ("digits_methods", "pass", "pass", 5)
    assert {"level", "rule", "message", "line", "change"} <= report["findings"][0].keys()
    notes = {finding["rule"] for finding in report["findings"] if finding["level"] == "note"}
    assert notes - {"package", "system-answers"} == {"demonstration"}


@pytest.mark.usefixtures("strict_only")
def test_the_command_takes_overrides_and_fails_with_a_message(printed):
    said = printed("preflight", "image_classification", "methods", "--submission.organization", "a b", code=1)
    assert "error [folder-name] submission.organization is 'a b'" in said
    assert "1 error; nothing was run and no files were written" in said


@without_cuda
@pytest.mark.usefixtures("strict_only")
def test_notes_point_out_methods_that_meet_and_a_regularizer_in_a_short_run():
    report = examined("imagenet_baseline", methods=(LabelSmoothing(), MixUp()), schedule={"epochs": 30})
    assert "this run has 30 of imagenet" in words(report, "methods")
    assert "label_smoothing and mixup both act on the targets" in words(report, "methods")
    assert "methods" in found(report, "note")


@pytest.mark.parametrize(("batch", "warned"), [(480, {"batch"}), (64, set())])
@pytest.mark.usefixtures("strict_only")
def test_an_epoch_whose_batches_leave_out_many_samples_is_named(batch, warned):
    report = examined("digits_baseline", global_batch=batch)
    assert found(report, "warning") & {"batch"} == warned
    assert ("an epoch leaves out 417 of 897 samples" in words(report, "batch")) == bool(warned)


def test_memory_names_the_largest_micro_batch_that_fits_and_warns_of_a_larger_one():
    config = replace(find("image_classification").config("methods", "digits"), global_batch=1024, micro_batch=1024)
    in_gib = [examination(config, memory=device_memory(gib)) for gib in (80, 2.11, 1)]
    (large, _), (small, _), (none, _) = (of.memory_findings() for of in in_gib)
    assert (large.level, small.level) == ("note", "warning")
    assert large.message.endswith("of 80.0 GiB; the largest that fits is --micro-batch 1024")
    assert "in forward passes of 1024, a step takes an estimated" in small.message  # 2 GiB and 5 % are no tensor's
    assert 0 < int(small.message.rpartition(" ")[2]) < 1024
    assert none.message.endswith("no micro-batch fits")
    whole = replace(in_gib[0].benchmark, spec=replace(in_gib[0].benchmark.spec, supports=frozenset({"ranks"})))
    two = replace(in_gib[0], benchmark=whole, config=replace(config, micro_batch=0), ranks=2)
    assert next(two.memory_findings()).message.endswith("GiB; --global-batch 1024 fits")


def test_memory_counts_an_evaluation_whose_batch_is_larger_than_a_steps():
    config = find("image_classification").config("mild", "imagenet")
    step, evaluation = examination(config, memory=20 << 30).memory_findings()
    assert step.level == "note" and evaluation.level == "warning"
    assert "in batches of 2048 takes an estimated 19.9 GiB" in evaluation.message
    fitting = int(evaluation.message.split()[-2])
    config = replace(config, data=replace(config.data, eval_batch=fitting))
    _, evaluation = examination(config, memory=20 << 30).memory_findings()
    assert 1500 < fitting < 2048 and evaluation.level == "note"


@without_cuda
def test_memory_of_this_machine_is_what_a_container_may_use(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text(f"{3 << 30}\n")
    monkeypatch.setattr("judging.ground.cores.GROUPS", tmp_path)
    assert device_memory(0) == 3 << 30
    assert "may use 3 GiB" in machine(tmp_path)["memory"]
