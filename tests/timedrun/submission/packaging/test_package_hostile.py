"""Hostile input of packages is refused and leaves nothing behind."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from judging.ground.errors import TimedrunError
from mlevents import keys
from tests.timedrun.submission.conftest import edit
from timedrun.cli import main
from timedrun.submission.packaging import package_layout
from timedrun.submission.packaging.package import PackageError, PackageReport

MakeSet = Callable[..., Path]
Packaged = Callable[..., PackageReport]


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


def edit_each(folder: Path, name: str, **changes: Any) -> None:
    for path in folder.glob(f"run_*/{name}"):
        edit(path, **changes)


def _last_event(path: Path, key: str, division: str) -> int:
    """Log `key` as a last event of the training in the log at `path`, whose division becomes `division`."""
    lines = path.read_text().replace('"value": "open"', f'"value": "{division}"').splitlines()
    line = json.loads(lines[-2].removeprefix(":::MLLOG ")) | {"key": key, "event_type": "POINT_IN_TIME", "value": 4}
    return path.write_text("\n".join([*lines[:-1], f":::MLLOG {json.dumps(line)}", lines[-1], ""]))


Damage = Callable[[Path], Any]
REFUSED: dict[str, tuple[Damage, str]] = {
    "space in a name": (lambda s: (s / "my notes").mkdir(), "my notes'.* a space"),
    "no UTF-8 in a name": (lambda s: os.mkdir(os.fsencode(s) + b"/\xff"), "invalid UTF-8"),
    "link up": (lambda s: (s / "run_0" / "up").symlink_to("../.."), "up: a symbolic link"),
    "pipe as a log": (lambda s: os.mkfifo(s / "result_9.txt"), "result_9.txt: a named pipe"),
    "pipe as a config": (lambda s: _pipe_in_place(s / "run_0" / "config.json"), "config.json: a named pipe"),
    "link as a config": (lambda s: _replaced_by_link(s / "run_0" / "config.json"), "config.json: a symbolic link, not"),
    "link as a run's folder": (lambda s: _replaced_by_link(s / "run_0"), "run_0: a symbolic link"),
    "folder as a log": (lambda s: (s / "result_9.txt").mkdir(), "result_9.txt"),
    "huge log": (lambda s: _sparse(s / "result_0.txt"), "result_0.txt has 51 MiB"),
    "deep config": (lambda s: (s / "run_0" / "config.json").write_text("[" * 10**5), "config.json: cannot be read"),
    "list as provenance": (lambda s: (s / "run_0" / "provenance.json").write_text("[]"), "provenance.json: not a JSON"),
    "scaling.json": (lambda s: (s / "scaling.json").write_text("{}"), "scaling.json: scales the score"),
    "system up": (lambda s: _logged(s, keys.SUBMISSION_PLATFORM, "../x"), r"'\.\./x', which cannot name a folder"),
    "markup": (lambda s: _logged(s, keys.CONFIG_NAME, "a`<script>"), "config_name"),
    "no results": (lambda s: [p.rename(s / f"x{p.name}") for p in s.glob("result_*")], "no result_N.txt found"),
    "no log": (lambda s: (s / "result_9.txt").write_text("hello"), "result_9.txt: not an MLPerf log"),
    "odd name": (lambda s: (s / "result_0.txt").rename(s / "result_a.txt"), "result_a.txt: .* with a number"),
    "no config": (lambda s: (s / "run_3" / "config.json").unlink(), "run_3/config.json: missing"),
    "strange benchmark": (lambda s: edit(s / "run_3" / "config.json", benchmark="a; b"), "not the import name"),
    "no package": (lambda s: edit_each(s, "config.json", benchmark="no_such"), "no package no_such is installed"),
    "no environment": (lambda s: (s / "run_3" / "environment.txt").unlink(), "run_3/environment.txt: missing"),
    "number as text": (lambda s: edit(s / "run_3" / "system.json", number_of_nodes=1), "number_of_nodes is 1"),
    "nested software": (lambda s: edit(s / "run_0" / "system.json", other_software_stack={"a": {"b": 1}}), "not text"),
    "another division": (lambda s: edit(s / "run_3" / "system.json", division="closed"), "division is 'closed', but"),
    "another submitter": (lambda s: edit(s / "run_3" / "system.json", submitter="Else"), "submitter is 'Else', but"),
    "resumed, in the closed division": (
        lambda s: [_last_event(s / f"result_{n}.txt", "resumed", "closed") for n in range(5)],
        "result_0.txt, line .*the closed division forbids",
    ),
    "a fault on purpose": (lambda s: _last_event(s / "result_2.txt", "fault", "open"), "a fault was injected"),
}
SOURCE_REFUSED: dict[str, tuple[Damage, str]] = {
    "names in one case": (lambda s: (s / "timedrun" / "__INIT__.py").touch(), "__INIT__.py and .*one file"),
    "newline": (lambda s: (s / "timedrun" / "a\nb.py").touch(), r"a\\nb.py'.* control character"),
    "link": (lambda s: (s / "timedrun" / "a.py").symlink_to("__init__.py"), "a.py: the source holds a symbolic link"),
    "linked folder": (lambda s: (s / "timedrun" / "more").symlink_to(s / "tests"), "more: the source holds a symbolic"),
    "linked package": (_linked_package, "timedrun: the source holds a symbolic link"),
    "linked licence": (lambda s: _replaced_by_link(s / "LICENSE"), "LICENSE: the source holds a symbolic link"),
    "pipe": (lambda s: os.mkfifo(s / "timedrun" / "pipe.py"), "pipe.py: a named pipe"),
    "huge": (lambda s: _sparse(s / "README.md"), "README.md has 51 MiB"),
}


@pytest.mark.parametrize(
    ("place", "case"), [("set", case) for case in REFUSED] + [("source", case) for case in SOURCE_REFUSED]
)
def test_a_set_or_source_with_unsafe_content_is_refused(
    tmp_path: Path, result_set: Path, packaged: Packaged, place: str, case: str
) -> None:
    damage, match = REFUSED[case] if place == "set" else SOURCE_REFUSED[case]
    try:
        damage(tmp_path / place)
    except OSError as error:
        pytest.skip(f"this file system does not take it: {error}")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(TimedrunError, match=match) as caught:
        packaged(result_set, out="new/out")
    assert sorted(tmp_path.rglob("*")) == before
    assert str(caught.value).isprintable()


def test_links_inside_a_set_are_ignored_and_a_set_that_is_a_link_is_refused(
    tmp_path: Path, small_set: Path, packaged: Packaged
) -> None:
    (small_set / "latest").symlink_to("run_0")
    (small_set / "loop").symlink_to("loop")
    (small_set / "nowhere").symlink_to("gone")
    assert not [path for path in packaged(small_set).folder.rglob("*") if path.is_symlink()]
    (tmp_path / "link").symlink_to("set")
    with pytest.raises(PackageError, match="link: a symbolic link"):
        packaged(tmp_path / "link", out="other")


def test_a_package_inside_a_set_is_refused(tmp_path: Path, make_set: MakeSet, packaged: Packaged) -> None:
    folder = make_set(tmp_path / "race" / "set", times=(1.0,))
    (tmp_path / "link").symlink_to("race")
    for out in ("race/set/out", "race/set/deep/out", "link/set/out"):
        with pytest.raises(PackageError, match="is inside the set"):
            packaged(folder, out=out)
    assert not (folder / "deep").exists()
    assert packaged(folder, out="race/out").files


@pytest.mark.parametrize(
    ("name", "reader"),
    [("result_0.txt", "timedrun.submission.packaging.result_folder.read"), ("run_0/config.json", "os.open")],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, small_set: Path, packaged: Packaged, monkeypatch: pytest.MonkeyPatch, name: str, reader: str
) -> None:
    def denied(path: Any, *_: object) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(reader, denied)
    with pytest.raises(PackageError, match=f"{name}: cannot be read .Permission denied"):
        packaged(small_set)
    monkeypatch.undo()
    assert not (tmp_path / "out").exists()


def test_the_command_reads_no_huge_log(tmp_path: Path, small_set: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _sparse(small_set / "result_0.txt")
    assert main(["package", str(small_set), "--out", str(tmp_path / "out")]) == 1
    assert "result_0.txt has 51 MiB" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_a_log_that_changes_while_it_is_packaged_is_refused(
    tmp_path: Path, small_set: Path, packaged: Packaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(tmp_path.iterdir())
    write_system = package_layout._write_system

    def while_running(*arguments: Any) -> None:
        with open(small_set / "result_0.txt", "a") as log:
            log.write("one more line\n")
        write_system(*arguments)

    monkeypatch.setattr(package_layout, "_write_system", while_running)
    with pytest.raises(PackageError, match="result_0.txt: changed while the package was written"):
        packaged(small_set)
    assert sorted(tmp_path.iterdir()) == before
