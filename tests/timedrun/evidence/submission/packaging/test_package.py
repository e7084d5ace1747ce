"""Packages: accepted by MLCommons' checkers, atomic and reproducible; hostile input leaves nothing behind."""

import hashlib
import json
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlperf_logging.repo_checker import repo_checker

from judging.ground.errors import TimedrunError
from judging.ground.result_files import read_json
from tests.judging.conftest import change_json
from tests.timedrun.conftest import git
from tests.timedrun.evidence.submission.conftest import described, implementation, probe_python
from timedrun.evidence.submission.packaging import package as packages
from timedrun.evidence.submission.packaging import package_layout
from timedrun.evidence.submission.packaging.package import PackageError
from timedrun.evidence.submission.packaging.package_layout import method_files, source_files
from timedrun.runner.storage import method_sources
from timedrun.runner.storage.method_sources import digest_of

DIGITS = {"dataset": "digits", "quality_target": 0.95, "qualities": (0.5, 0.96), "config_name": "digits_methods"}
SYSTEMS = ("1xCPU-baseline", "1xCPU-methods")


def test_a_package_of_two_systems_has_the_layout_of_the_rules_and_passes_mlcommons_checkers(
    tmp_path, make_set, packaged, caplog
):
    sets = [make_set(tmp_path / name, platform=name) for name in SYSTEMS]
    report = packaged(*sets, check=True)
    folder, place = report.folder, "benchmarks/resnet/implementations"
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    of_systems = set[str]()
    for name in SYSTEMS:
        runs = (f"runs/run_{n}/{file}" for n in range(5) for file in ("config.json", "provenance.json"))
        scripts = ("README.md", "setup.sh", "init_datasets.sh", "run_and_time.sh", "environment.txt", "constraints.txt")
        of_systems |= {f"{place}/{name}/{file}" for file in (*runs, *scripts, f"{name}_timedrun.json")}
        of_systems |= {f"systems/{name}.json", *(f"results/{name}/resnet/result_{n}.txt" for n in range(5))}
    assert files == of_systems | {
        *("LICENSE", "README.md", "manifest.json"),
        *(f"{place}/timedrun/{name}" for name in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE")),
        *(f"{place}/timedrun/{name}/__init__.py" for name in ("timedrun", "logging/mlevents", "image_classification")),
        *(f"{place}/timedrun/{name}" for name in ("scripts/run_and_time.sh", "image_classification/model.py")),
    }
    log = folder / "results/1xCPU-baseline/resnet/result_3.txt"
    assert log.read_bytes() == (sets[0] / "result_3.txt").read_bytes()
    assert "is in\n`../timedrun/`" in (implementation(report) / "README.md").read_text()
    assert described(report)["global_batch_size"] == 64 and described(report)["source"]["commit"] == "unknown"
    manifest = read_json(folder / "manifest.json")
    assert set(manifest["files"]) == files - {"manifest.json"} and report.files == len(files)
    for name, digest in manifest["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    assert not manifest["verified"] and not manifest["demonstration"] and not report.demonstration
    assert str(tmp_path) not in json.dumps(manifest)

    assert report.official.verdict == "pass", report.official.messages
    assert report.official.tool == "package_checker" and report.ruleset == "2.0.0"
    with caplog.at_level("INFO"):
        repo_checker.run_checks(str(folder))  # returns False either way: its words tell
    assert "ALL CHECKS PASSED" in caplog.text
    assert [score.score_minutes for score in report.scores] == [pytest.approx(12.0)] * 2
    assert len(report.notes) == 1 and "container image: none" in report.notes[0]
    for words in ("MLCommons' check: pass", "unverified", f"strict check: {report.strict}"):
        assert words in report.text
    assert manifest["checked"]["verdict"] == "pass" and manifest["checked"]["by"] == report.official.checker
    assert manifest["strict"]["verdict"] == report.strict == ("fail" if manifest["strict"]["errors"] else "pass")
    assert report.findings and all(not Path(finding.path or "").is_absolute() for finding in report.findings)
    assert json.loads(json.dumps(report.as_dict()))["official"]["verdict"] == "pass"


def test_equal_results_make_equal_archives(tmp_path, result_set, source, packaged):
    first = packaged(result_set, out="one")
    for path in [*result_set.rglob("*"), *source.rglob("*")]:
        os.utime(path, (1, 1))
    previous = os.umask(0o077)
    try:
        second = packaged(result_set, out="two")
    finally:
        os.umask(previous)
    assert first.archive.read_bytes() == second.archive.read_bytes()
    assert first.archive_sha256 == hashlib.sha256(second.archive.read_bytes()).hexdigest()
    with tarfile.open(first.archive) as tar:
        names = tar.getnames()
        assert names == sorted(names, key=lambda name: name.split("/")) and names[0] == "Example"
        assert {(entry.uid, entry.gid, entry.mtime, entry.uname) for entry in tar} == {(0, 0, 0, "")}
        assert {entry.mode & 0o111 for entry in tar if entry.name.endswith(".sh")} == {0o111}


def test_a_demonstration_is_labelled_and_no_submission_also_on_a_terminal(tmp_path, make_set, packaged, monkeypatch):
    monkeypatch.setattr("judging.ground.stdio.terminal_columns", lambda stream: 80)  # folds no line of a file
    report = packaged(make_set(tmp_path / "set", times=(0.1, 0.2, 0.3), **DIGITS))
    assert report.demonstration and report.scores[0].score_minutes == pytest.approx(0.2)
    assert read_json(report.folder / "manifest.json")["demonstration"] is True
    for path in (report.folder / "README.md", implementation(report) / "README.md"):
        text = path.read_text().lower()
        assert "(unverified, demonstration), mean within" in text and "submission" not in text
    assert "submission" not in report.text


def test_scripts_repeat_every_run_from_its_own_config_with_the_versions_of_the_runs(tmp_path, result_set, packaged):
    for number in range(5):
        (result_set / f"run_{number}" / "environment.txt").write_text(
            "python 3.11\n\ninstalled distributions:\ntimedrun==0.1.0\nscikit_learn==1.9.1\ntorch==2.13.0+cpu\n"
        )
    system = implementation(packaged(result_set))
    pins = [line for line in (system / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert pins == ["scikit_learn==1.9.1", "torch==2.13.0"]
    path = probe_python(tmp_path, f'echo "$@" >> {tmp_path}/calls\nexit 3\n')
    (tmp_path / "my data").mkdir()
    command = ["bash", system / "run_and_time.sh", "again", "my data"]
    subprocess.run(command, env=os.environ | {"PATH": path}, check=True, cwd=tmp_path)
    subprocess.run(["bash", system / "setup.sh"], env={"PATH": path}, check=False, timeout=100)
    subprocess.run(["bash", "-n", system / "init_datasets.sh"], check=True)
    *runs, setup = (tmp_path / "calls").read_text().splitlines()
    assert runs == [
        f"-m timedrun run image_classification runs/run_{n}/config.json --ranks 2 "
        f"--results {tmp_path}/again/result_{n}.txt --data-folder {tmp_path}/my data"
        for n in range(5)
    ]
    assert setup.startswith(f"-m pip install --constraint {system}/constraints.txt ")
    assert setup.endswith("/timedrun[digits]"), "the extras that the environment had, no others"


def test_tracked_files_and_untracked_python_are_packaged(result_set, source, packaged):
    git(source, "init", "-q")
    git(source, "add", "timedrun/__init__.py", "image_classification", "pyproject.toml")
    git(source, "commit", "-q", "-m", "first")
    for name in ("added.py", "notes.txt", "ignored.py"):
        (source / "image_classification" / name).write_text("")
    (source / ".gitignore").write_text("ignored.py\n")
    report = packaged(result_set)
    there = {path.name for path in report.folder.rglob("*")}
    assert {name for name in there if name.endswith(".py")} == {"__init__.py", "model.py", "added.py"}
    assert not there & {"notes.txt", ".gitignore"}
    assert any("git does not track them: image_classification/added.py, logging/" in note for note in report.notes)
    recorded = read_json(report.folder / "manifest.json")["source"]
    assert len(recorded["commit"]) == 40 and recorded["dirty"] is True
    assert any("record commit unknown, but the source is" in note for note in report.notes)


def test_missing_and_differing_records_of_runs_are_noted_and_kept(result_set, packaged):
    data, path = {"name": "imagenet", "sha256": "b" * 64, "of": "every file"}, result_set / "run_1/provenance.json"
    change_json(path, data=data, image_digest=None, command=f"timedrun run {result_set}/x")
    (result_set / "run_2" / "environment.txt").write_text("torch==1.0\n")
    change_json(result_set / "run_4" / "system.json", cooling="", hw_notes="warm")
    report = packaged(result_set)
    for words in (
        "run_1/provenance.json: contains a path",
        "environment.txt: differs",
        "cooling, hw_notes",
        "different digests of their data",
        "container image: none recorded",
    ):
        assert len([note for note in report.notes if words in note]) == 1, words
    assert len(report.notes) == 5
    folder, values = implementation(report), described(report)
    assert (folder / "runs/run_2/environment.txt").read_text() == "torch==1.0\n"
    assert values["data"] == ["none recorded", data] and values["images"] == ["none recorded"]
    assert "Container image: none recorded." in (folder / "README.md").read_text()


@pytest.mark.parametrize("name", ["../up", "with space", ".hidden", "a..b", "new\nline", "", "x" * 101])
def test_unsafe_folder_names_are_refused(tmp_path, make_set, refuses, name):
    folder = make_set(tmp_path / "set", times=(1.0,), platform=name)
    refuses(folder, words="cannot name a folder")
    refuses(folder, words="submitter's name", submitter=name)


def test_sets_that_do_not_belong_together_are_refused(tmp_path, make_set, refuses):
    baseline = make_set(tmp_path / "baseline", times=(1.0,))
    same = make_set(tmp_path / "same", times=(1.0,), platform="1xcpu-BASELINE")
    bert = make_set(tmp_path / "bert", times=(1.0,), platform="b", benchmark="bert")
    digits = make_set(tmp_path / "digits", times=(1.0,), platform="d", **DIGITS)
    chess = make_set(tmp_path / "chess", times=(1.0,), benchmark="chess")
    mixed = make_set(tmp_path / "mixed", times=(1.0,))
    (mixed / "result_1.txt").write_bytes((bert / "result_0.txt").read_bytes())
    for sets, words in (
        ([baseline, baseline], "are the same set"),
        ([baseline, same], "both have the system id"),
        ([baseline, bert], "different rounds .*resnet of 2.0.0, bert of 2.1.0"),
        ([baseline, digits], "only one of them is a demonstration"),
        ([chess], "no rules .* 'chess'"),
        ([mixed], "results differ in submission_benchmark"),
        ([], "nothing was packaged"),
        ([tmp_path / "nowhere"], "no such folder"),
        ([tmp_path], "pass these"),
    ):
        refuses(*sets, words=words)
    words = "is Example, .* is Other; .*run again with --submission.organization Other"
    refuses(baseline, words=words, submitter="Other")


def test_a_failure_while_writing_leaves_nothing(small_set, refuses, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "x")

    monkeypatch.setattr(packages, "write_archive", full)
    refuses(small_set, words="No space left", out="new/deep/out")


def test_the_source_of_a_nested_benchmark_has_the_modules_of_its_parents():
    files = source_files(Path(__file__).parents[5], "language_model.gpt")
    assert {"language_model/gpt/train.py", "language_model/model.py", "timedrun/cli.py"} <= files.keys()
    assert not any(name.startswith("image_classification/") for name in files)


def files_of(reference: str, digest: str | None, others: dict[str, Path]) -> dict[str, Path]:
    """The files of the method that a set of runs recorded with the digest of its source."""
    return method_files(SimpleNamespace(folder=Path("set"), own_methods={reference: digest}), others)


def test_modules_that_a_method_imports_from_its_folder_are_packaged_with_it(tmp_path, monkeypatch):
    for number in (1, 2):
        (tmp_path / f"in_{number}").mkdir()
        monkeypatch.chdir(tmp_path / f"in_{number}")
        own = Path.cwd() / f"own_method_{number}.py"
        own.write_text("import own_help\nclass Own(Method): ...")
        (Path.cwd() / "own_help.py").write_text(f"# {number}")
        monkeypatch.syspath_prepend(Path.cwd())
        recorded = f"{own.stem}:Own", digest_of(method_sources.source_files(own.stem, own))
        names = {f"own_methods/{name}.py": Path.cwd() / f"{name}.py" for name in (own.stem, "own_help")}
        assert files_of(*recorded, {}) == names and files_of(*recorded, names) == {}
        assert list(files_of(*recorded, {"own_help.py": Path("own_help.py")})) == [f"own_methods/{own.name}"]
    with pytest.raises(PackageError, match="not among the files of 'own_method_2'"):
        files_of(*recorded, {"own_method_2/test.sh": Path("test.sh")})
    (Path.cwd() / "own_help.py").write_text("# edited")
    with pytest.raises(PackageError, match=r"own_method_2.py \(with own_help.py\) was changed after the runs"):
        files_of(*recorded, {})


def _replaced_by_link(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


def _in_logs(folder: Path, **words: str) -> None:
    """Write other words into all logs, each in place of the one that names it."""
    for path in folder.glob("result_*.txt"):
        text = path.read_text()
        for old, new in words.items():
            text = text.replace(f'"{old}"', f'"{new}"')
        path.write_text(text)


Damage = Callable[[Path], Any]
REFUSED: dict[str, tuple[Damage, str]] = {
    "space in a name": (lambda s: (s / "my notes").mkdir(), "my notes'.* a space"),
    "no UTF-8 in a name": (lambda s: os.mkdir(os.fsencode(s) + b"/\xff"), "invalid UTF-8"),
    "link up": (lambda s: (s / "run_0" / "up").symlink_to("../.."), "up: a symbolic link"),
    "a pipe config": (lambda s: [do(s / "run_0/config.json") for do in (Path.unlink, os.mkfifo)], "json: a named"),
    "link as a config": (lambda s: _replaced_by_link(s / "run_0/config.json"), "config.json: a symbolic link, not"),
    "link as a run's folder": (lambda s: _replaced_by_link(s / "run_0"), "run_0: a symbolic link"),
    "huge log": (lambda s: os.truncate(s / "result_0.txt", 51 * 2**20), "result_0.txt has 51 MiB"),
    "deep config": (lambda s: (s / "run_0/config.json").write_text("[" * 10**5), "config.json: cannot be read"),
    "list as provenance": (lambda s: (s / "run_0/provenance.json").write_text("[]"), "provenance.json: not a JSON"),
    "scaling.json": (lambda s: (s / "scaling.json").write_text("{}"), "scaling.json: scales the score"),
    "markup": (lambda s: _in_logs(s, imagenet_baseline="a`<script>"), "config_name is .* cannot hold"),
    "no results": (lambda s: [p.rename(s / f"x{p.name}") for p in s.glob("result_*")], "no result_N.txt found"),
    "no log": (lambda s: (s / "result_9.txt").write_text("hello"), "result_9.txt: not an MLPerf log"),
    "odd name": (lambda s: (s / "result_0.txt").rename(s / "result_a.txt"), "result_a.txt: .* with a number"),
    "no config": (lambda s: (s / "run_3/config.json").unlink(), "run_3/config.json: missing"),
    "strange benchmark": (lambda s: change_json(s / "run_3/config.json", benchmark="a; b"), "not the import name"),
    "no package": (lambda s: change_json(*s.glob("run_*/config.json"), benchmark="no_1"), "no package no_1 is"),
    "no environment": (lambda s: (s / "run_3" / "environment.txt").unlink(), "run_3/environment.txt: missing"),
    "number as text": (lambda s: change_json(s / "run_3/system.json", number_of_nodes=1), "number_of_nodes is 1"),
    "another division": (lambda s: change_json(s / "run_3/system.json", division="closed"), "is 'closed', but"),
    "resumed, in the closed division": (
        lambda s: _in_logs(s, open="closed", cache_clear="resumed"),
        "result_0.txt, line .*the closed division forbids",
    ),
}
SOURCE_REFUSED: dict[str, tuple[Damage, str]] = {
    "names in one case": (lambda s: (s / "timedrun" / "__INIT__.py").touch(), "__INIT__.py and .*one file"),
    "newline": (lambda s: (s / "timedrun" / "a\nb.py").touch(), r"a\\nb.py'.* control character"),
    "link": (lambda s: (s / "timedrun" / "a.py").symlink_to("__init__.py"), "a.py: the source holds a symbolic link"),
    "linked folder": (lambda s: (s / "timedrun" / "more").symlink_to(s / "tests"), "more: the source holds a symbolic"),
    "pipe": (lambda s: os.mkfifo(s / "timedrun" / "pipe.py"), "pipe.py: a named pipe"),
}


@pytest.mark.parametrize(
    ("place", "case"), [("set", case) for case in REFUSED] + [("source", case) for case in SOURCE_REFUSED]
)
def test_a_set_or_source_with_unsafe_content_is_refused(tmp_path, result_set, refuses, place, case):
    damage, words = REFUSED[case] if place == "set" else SOURCE_REFUSED[case]
    try:
        damage(tmp_path / place)
    except OSError as error:
        pytest.skip(f"this file system does not take it: {error}")
    assert refuses(result_set, words=words, kind=TimedrunError, out="new/out").isprintable()


def test_links_in_a_set_are_ignored_a_linked_set_refused(tmp_path, small_set, packaged, refuses):
    (small_set / "latest").symlink_to("run_0")
    (small_set / "loop").symlink_to("loop")
    (small_set / "nowhere").symlink_to("gone")
    assert not [path for path in packaged(small_set).folder.rglob("*") if path.is_symlink()]
    (tmp_path / "link").symlink_to("set")
    refuses(tmp_path / "link", words="link: a symbolic link", out="other")


def test_a_package_is_written_over_nothing_and_into_no_set(tmp_path, make_set, packaged, refuses):
    folder = make_set(tmp_path / "race" / "set", times=(1.0,))
    (tmp_path / "out").mkdir()
    (tmp_path / "nothing").symlink_to(tmp_path / "nowhere")
    (tmp_path / "link").symlink_to("race")
    for out in ("race/set/out", "race/set/deep/out", "link/set/out", "out", "nothing"):
        words = "is inside the set" if "/" in out else f"{out} already exists and was not overwritten"
        refuses(folder, words=words, out=out)
    assert packaged(folder, out="race/out").files


def test_a_log_that_changes_while_it_is_packaged_is_refused(small_set, refuses, monkeypatch):
    write_system = package_layout._write_system

    def while_running(*arguments: Any) -> None:
        with open(small_set / "result_0.txt", "a") as log:
            log.write("one more line\n")
        write_system(*arguments)

    monkeypatch.setattr(package_layout, "_write_system", while_running)
    refuses(small_set, words="result_0.txt: changed while the package was written")
