"""Nothing of the user, the machine's names or its folders stands in what is published of a run."""

import getpass
import importlib
import json
import os
import platform
import socket
from pathlib import Path

import pytest

from timedrun.commands.run import without_places
from timedrun.provenance import system

SECRETS = {
    "SECRET_TOKEN": "hunter2hunter2",
    "PIP_INDEX_URL": "https://user:hunter2hunter2@pypi.example/simple",
    "HOSTNAME": "hunter2hunter2",
}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Packages installed from a folder and from an address with a password, as pip records it, and one whose version
    is a path; where they lie."""
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
    return tmp_path


def test_environment_and_description_name_versions_and_no_places_passwords_hosts_or_people(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    environment = system.environment()
    assert "fromfolder==1.0\n" in environment
    assert "fromaddress==2.0\n" in environment and "oddversion==unknown\n" in environment
    description = json.dumps(system.describe("Example", "system", ranks=1, device="cpu"))
    assert not {word for word in _private(installed) if word in environment or word in description}


@pytest.mark.parametrize(
    "option", ["--results", "--data-folder", "--master", "--node-rank"], ids=lambda option: option[2:]
)
@pytest.mark.parametrize("joined", [False, True])
def test_the_recorded_command_holds_no_place_and_no_host(option: str, joined: bool) -> None:
    given = [f"{option}=/home/somebody"] if joined else [option, "/home/somebody"]
    command = ["run", "image_classification", "/home/somebody/config.json", *given, "--seed", "1"]
    assert without_places(command) == ["run", "image_classification", "config.json", "--seed", "1"]


def _private(folder: Path) -> set[str]:
    words = {str(folder), str(Path.home()), os.getcwd(), "hunter2hunter2", "git.example", socket.gethostname()}
    words |= {platform.node(), getpass.getuser()}
    return {
        word for word in words if len(word) > 4 and word not in ("linux", "localhost", "timedrun")
    }  # our image's user
