"""Hostile input of packages is refused and leaves nothing behind."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from judging.ground.errors import TimedrunError
from mlevents import keys
from timedrun.cli import main
from timedrun.submission.packaging import package_layout
from timedrun.submission.packaging.package import PackageError, PackageReport, package

MakeSet = Callable[..., Path]


def _package(sets: list[Path], out: Path, source: Path, check: bool = False, **more: Any) -> PackageReport:
    return package(sets, out, submitter="Example", source=source, check=check, **more)


def _sparse(path: Path) -> None:
    with open(path, "r+b") as file:
        file.truncate(51 * 2**20)


def _replaced_by_link(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


def _pipe_in_place(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _linked_package(source: Path) -> None:
    (source / "timedrun").rename(source / "other")
    (source / "timedrun").symlink_to("other")


def _logged(folder: Path, key: str, value: str) -> None:
    for path in folder.glob("result_*.txt"):
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines):
            if f'"key": "{key}"' in line:
                mark, _, record = line.partition("{")
                lines[number] = mark + json.dumps(json.loads("{" + record) | {"value": value})
        path.write_text("\n".join(lines) + "\n")


def _edit(path: Path, **changes: Any) -> int:
    return path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _last_event(path: Path, key: str, division: str) -> int:
    """Log `key` as a last event of the training in the log at `path`, whose division becomes `division`."""
    lines = path.read_text().replace('"value": "open"', f'"value": "{division}"').splitlines()
    line = json.loads(lines[-2].removeprefix(":::MLLOG ")) | {"key": key, "event_type": "POINT_IN_TIME", "value": 4}
    return path.write_text("\n".join([*lines[:-1], f":::MLLOG {json.dumps(line)}", lines[-1], ""]))


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "space in a name": (lambda s: (s / "my notes").mkdir(), "my notes'.* a space"),
    "no UTF-8 in a name": (lambda s: os.mkdir(os.fsencode(s) + b"/\xff"), "invalid UTF-8"),
    "link up": (lambda s: (s / "run_0" / "up").symlink_to("../.."), "up: a symbolic link"),
    "pipe": (lambda s: os.mkfifo(s / "run_0" / "pipe"), "pipe: a named pipe"),
    "pipe as a log": (lambda s: os.mkfifo(s / "result_9.txt"), "result_9.txt: a named pipe"),
    "pipe as a config": (
        lambda s: _pipe_in_place(s / "run_0" / "config.json"),
        "config.json: a named pipe",
    ),
    "link as a config": (lambda s: _replaced_by_link(s / "run_0" / "config.json"), "config.json: a symbolic link, not"),
    "link as a run's folder": (lambda s: _replaced_by_link(s / "run_0"), "run_0: a symbolic link"),
    "folder as a log": (lambda s: (s / "result_9.txt").mkdir(), "result_9.txt"),
    "huge log": (lambda s: _sparse(s / "result_0.txt"), "result_0.txt has 51 MiB"),
    "deep config": (lambda s: (s / "run_0" / "config.json").write_text("[" * 10**5), "config.json: cannot be read"),
    "list as provenance": (lambda s: (s / "run_0" / "provenance.json").write_text("[]"), "provenance.json: not a JSON"),
    "scaling.json": (lambda s: (s / "scaling.json").write_text("{}"), "scaling.json: scales the score"),
    "system up": (
        lambda s: _logged(s, keys.SUBMISSION_PLATFORM, "../../x"),
        r"'\.\./\.\./x', which cannot name a folder",
    ),
    "markup": (lambda s: _logged(s, keys.CONFIG_NAME, "a`<script>"), "config_name"),
    "no results": (lambda s: [p.rename(s / f"x{p.name}") for p in s.glob("result_*")], "no result_N.txt found"),
    "no log": (lambda s: (s / "result_9.txt").write_text("hello"), "result_9.txt: not an MLPerf log"),
    "odd name": (lambda s: (s / "result_0.txt").rename(s / "result_a.txt"), "result_a.txt: .* with a number"),
    "no config": (lambda s: (s / "run_3" / "config.json").unlink(), "run_3/config.json: missing"),
    "strange benchmark": (lambda s: _edit(s / "run_3" / "config.json", benchmark="a; b"), "not the import name"),
    "no environment": (lambda s: (s / "run_3" / "environment.txt").unlink(), "run_3/environment.txt: missing"),
    "number as text": (lambda s: _edit(s / "run_3" / "system.json", number_of_nodes=1), "number_of_nodes is 1"),
    "another division": (lambda s: _edit(s / "run_3" / "system.json", division="closed"), "division is 'closed', but"),
    "another submitter": (lambda s: _edit(s / "run_3" / "system.json", submitter="Else"), "submitter is 'Else', but"),
    "resumed, in the closed division": (
        lambda s: [_last_event(s / f"result_{n}.txt", "resumed", "closed") for n in range(5)],
        "result_0.txt, line .*the closed division forbids",
    ),
    "unknown package": (
        lambda s: [_edit(s / f"run_{n}" / "config.json", benchmark="no_such_benchmark") for n in range(5)],
        "no package no_such_benchmark is installed",
    ),
    "nested software": (
        lambda s: _edit(s / "run_0" / "system.json", other_software_stack={"a": {"b": 1}}),
        "not text",
    ),
}


SOURCE_REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "names in one case": (lambda s: (s / "timedrun" / "__INIT__.py").touch(), "__INIT__.py and .*one file"),
    "space": (lambda s: (s / "timedrun" / "a b.py").touch(), "a b.py'.* a space"),
    "newline": (lambda s: (s / "timedrun" / "a\nb.py").touch(), r"a\\nb.py'.* control character"),
    "link": (lambda s: (s / "timedrun" / "a.py").symlink_to("__init__.py"), "a.py: the source holds a symbolic link"),
    "linked folder": (lambda s: (s / "timedrun" / "more").symlink_to(s / "tests"), "more: the source holds a symbolic"),
    "linked package": (
        _linked_package,
        "timedrun: the source holds a symbolic link",
    ),
    "linked licence": (lambda s: _replaced_by_link(s / "LICENSE"), "LICENSE: the source holds a symbolic link"),
    "pipe": (lambda s: os.mkfifo(s / "timedrun" / "pipe.py"), "pipe.py: a named pipe"),
    "huge": (lambda s: _sparse(s / "README.md"), "README.md has 51 MiB"),
}


@pytest.mark.parametrize(
    ("place", "case"), [("set", case) for case in REFUSED] + [("source", c) for c in SOURCE_REFUSED]
)
def test_a_set_or_source_with_unsafe_content_is_refused(
    tmp_path: Path, make_set: MakeSet, source: Path, place: str, case: str
) -> None:
    damage, match = REFUSED[case] if place == "set" else SOURCE_REFUSED[case]
    folder = make_set(tmp_path / "set")
    try:
        damage(tmp_path / place)
    except OSError as error:
        pytest.skip(f"this file system does not take it: {error}")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(TimedrunError, match=match) as caught:
        _package([folder], tmp_path / "new" / "out", source)
    assert sorted(tmp_path.rglob("*")) == before
    assert str(caught.value).isprintable()


def test_links_inside_a_set_are_ignored_and_a_set_that_is_a_link_is_refused(
    tmp_path: Path, make_set: MakeSet, source: Path
) -> None:
    folder = make_set(tmp_path / "set", times=(1.0,))
    (folder / "latest").symlink_to("run_0")
    (folder / "loop").symlink_to("loop")
    (folder / "nowhere").symlink_to("gone")
    report = _package([folder], tmp_path / "out", source)
    assert not [path for path in report.folder.rglob("*") if path.is_symlink()]
    (tmp_path / "link").symlink_to("set")
    with pytest.raises(PackageError, match="link: a symbolic link"):
        _package([tmp_path / "link"], tmp_path / "other", source)


def test_a_package_inside_a_set_is_refused(tmp_path: Path, make_set: MakeSet, source: Path) -> None:
    folder = make_set(tmp_path / "race" / "set", times=(1.0,))
    (tmp_path / "link").symlink_to("race")
    for out in (folder / "out", folder / "deep" / "out", tmp_path / "link" / "set" / "out"):
        with pytest.raises(PackageError, match="is inside the set"):
            _package([folder], out, source)
    assert not (folder / "deep").exists()
    with pytest.raises(PackageError, match="already exists and was not"):
        _package([folder], tmp_path / "race", source)
    assert _package([folder], tmp_path / "race" / "out", source).files


@pytest.mark.parametrize("name", ["result_0.txt", "run_0/config.json"])
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, make_set: MakeSet, source: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = make_set(tmp_path / "set", times=(1.0,))

    def denied(path: Any, *_: object) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    if name == "result_0.txt":
        monkeypatch.setattr("timedrun.submission.packaging.result_folder.read", denied)
    else:
        monkeypatch.setattr("os.open", denied)
    with pytest.raises(PermissionError, match=f"Permission denied.*{name}"):
        _package([folder], tmp_path / "out", source)
    monkeypatch.undo()
    assert not (tmp_path / "out").exists()


def test_the_command_refuses_before_it_reads_a_huge_log(
    tmp_path: Path, make_set: MakeSet, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_set(tmp_path / "set", times=(1.0,))
    _sparse(folder / "result_0.txt")
    assert main(["package", str(folder), "--out", str(tmp_path / "out")]) == 1
    assert "result_0.txt has 51 MiB" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_a_log_that_changes_while_it_is_packaged_is_refused(
    tmp_path: Path, make_set: MakeSet, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_set(tmp_path / "set", times=(1.0,))
    before = sorted(tmp_path.iterdir())
    write_system = package_layout._write_system

    def while_running(*arguments: Any) -> None:
        with open(folder / "result_0.txt", "a") as log:
            log.write("one more line\n")
        write_system(*arguments)

    monkeypatch.setattr(package_layout, "_write_system", while_running)
    with pytest.raises(PackageError, match="result_0.txt: changed while the package was written"):
        _package([folder], tmp_path / "out", source)
    assert sorted(tmp_path.iterdir()) == before
