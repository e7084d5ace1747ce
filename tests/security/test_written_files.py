"""What is written honours the umask, goes through no link, adds no record to a log and names no person or place."""

import getpass
import importlib
import json
import os
import platform
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from judging.ground.atomic_file import replace_text, write_file
from judging.ground.errors import DataError
from judging.ground.result_files import write_json
from language_model.text import topics_store
from mlevents.event import MARK
from mlevents.record import read
from mlevents.runlog import ResultFileExists, RunLog
from tests.security.hostile_logs import ESCAPE
from timedrun.evidence.submission.packaging import safe_files
from timedrun.runner.config_choice import without_places
from timedrun.runner.provenance import system
from timedrun.runner.run import checkpoint_file


@pytest.fixture(params=[0o077, 0o022, 0o002])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """A umask for the time of the test."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


WRITERS: dict[str, Callable[[Path], object]] = {
    "result": lambda path: RunLog(path).close(),
    "json": lambda path: write_json(path, {}),
    "text": lambda path: replace_text(path, ""),
    "store": lambda path: write_file(path, b""),
    "checkpoint": lambda path: checkpoint_file.save(path, {"a": torch.zeros(1)}),
    "package.txt": lambda path: safe_files.write(path, b""),
    "script.sh": lambda path: safe_files.write(path, b""),
}


@pytest.mark.parametrize("name", WRITERS)
def test_no_file_gives_others_more_than_the_umask_lets(name, umask, tmp_path):
    path = tmp_path / name
    WRITERS[name](path)
    mode = stat.S_IMODE(path.stat().st_mode)
    assert not mode & (umask | 0o002 | stat.S_ISUID | stat.S_ISGID), oct(mode)
    assert mode & 0o600 == 0o600 and bool(mode & 0o100) == name.endswith(".sh")


@pytest.mark.parametrize(
    ("name", "aside"), [("json", ".draft"), ("text", ".draft"), ("store", ".draft"), ("result", "")]
)
def test_nothing_is_written_through_a_link(name, aside, tmp_path):
    victim, path = tmp_path / "victim", tmp_path / name
    victim.write_text("kept")
    (tmp_path / f"{name}{aside}").symlink_to(victim)
    if aside:
        WRITERS[name](path)
        assert not path.is_symlink() and path.is_file()
    else:
        with pytest.raises(ResultFileExists):
            WRITERS[name](path)
    assert victim.read_text() == "kept"


def test_a_cached_store_of_another_user_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def build(corpora, out, settings, *, vocabulary):
        out.mkdir()
        (out / "manifest.json").write_text("{}")

    monkeypatch.setattr(topics_store, "build_store", build)
    folder = topics_store.prepared(64)
    assert stat.S_IMODE((tmp_path / "cache" / "timedrun").stat().st_mode) == 0o700
    assert topics_store.prepared(64) == folder
    if os.geteuid() == 0:
        os.chown(folder, 4242, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(DataError, match="another user"):
        topics_store.prepared(64)


RECORD = '{"namespace": "", "time_ms": 1, "event_type": "INTERVAL_END", "key": "run_stop", "value": 0, "metadata": {}}'
TEXTS = [
    *(f"\n{MARK} {RECORD}\n", f"\r{MARK} {RECORD}", f"\u2028{MARK} {RECORD}\x85", f'"}}\n{MARK} {RECORD}'),
    *(f":::{MARK}", f":::::{MARK}{MARK}", ":::ML" + MARK + "LOG", ESCAPE, "\u202egnp.exe", "\ud800", "\x00"),
    "x" * 100_000,
]


def lines_of(path: Path) -> list[str]:
    """The lines of a log, however one counts them."""
    text = path.read_bytes().decode("ascii")
    assert text.endswith("\n")
    assert len(text.splitlines()) == text.count("\n")
    assert all(line.isprintable() for line in text.splitlines())
    return text.splitlines()


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_a_value_is_one_record_or_refused(text, tmp_path):
    path = tmp_path / "result_0.txt"
    log = RunLog(path)
    refused = MARK in text or text == "\ud800"
    if refused:
        with pytest.raises(ValueError, match="nothing was logged"):
            log.event("submission_org", text)
        with pytest.raises(ValueError, match="nothing was logged"):
            log.event("submission_org", "x", name=text)
    else:
        log.event("submission_org", text, name=text)
    log.close()
    assert len(lines_of(path)) == (1 if refused else 2)
    record = read(path)
    assert not record.problems
    assert record.text("submission_org") == (None if refused else text)


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_a_reason_is_always_logged_and_is_one_record(text, tmp_path):
    path = tmp_path / "result_0.txt"
    RunLog(path).close(reason=f"DataError: {text}")
    assert len(lines_of(path)) == 1
    record = read(path)
    assert (record.status, record.minutes, record.problems) == ("aborted", None, ())
    reason = record.stopped.metadata["reason"]
    assert reason.startswith("DataError: ") and len(reason) <= 400
    assert [event.key for event in record.events] == ["run_stop"]


SECRETS = {
    "SECRET_TOKEN": "hunter2hunter2",
    "PIP_INDEX_URL": "https://user:hunter2hunter2@pypi.example/simple",
    "HOSTNAME": "hunter2hunter2",
}


def test_environment_and_description_name_versions_and_no_places_passwords_hosts_or_people(tmp_path, monkeypatch):
    folder = tmp_path / "site"
    addresses = {
        "fromfolder": {"url": f"file://{tmp_path}/private", "dir_info": {"editable": True}},
        "fromaddress": {"url": "https://user:hunter2hunter2@git.example/x.git", "vcs_info": {"vcs": "git"}},
    }
    for name, version in (("fromfolder", "1.0"), ("fromaddress", "2.0"), ("oddversion", f"{tmp_path}/private")):
        info = folder / f"{name}-1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "direct_url.json").write_text(json.dumps(addresses.get(name, {})))
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(system, "distributions", system.distributions.__wrapped__)  # which remembers none
    environment = system.environment()
    assert "fromfolder==1.0\n" in environment
    assert "fromaddress==2.0\n" in environment and "oddversion==unknown\n" in environment
    description = json.dumps(system.describe("Example", "system", ranks=1, device="cpu"))
    assert not {word for word in _private(tmp_path) if word in environment or word in description}


@pytest.mark.parametrize("given", [["--results=/home/somebody"], ["--data-folder", "/home/somebody"]])
def test_the_recorded_command_holds_no_place_and_no_host(given):
    for folder, kept in (("/home/somebody", "my.json"), ("../x.json+y", "my.json+ema(half_life=8)")):
        command = ["run", "image_classification", f"{folder}/{kept}", *given, "--seed", "1"]
        assert without_places(command) == ["run", "image_classification", kept, "--seed", "1"]


def _private(folder: Path) -> set[str]:
    words = {str(folder), str(Path.home()), os.getcwd(), "hunter2hunter2", "git.example", socket.gethostname()}
    words |= {platform.node(), getpass.getuser()}
    return {
        word for word in words if len(word) > 4 and word not in ("linux", "localhost", "timedrun")
    }  # our image's user
