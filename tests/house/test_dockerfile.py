"""What of the Dockerfile and of scripts/build_image.sh can be held to without a container engine."""

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "Dockerfile").read_text()
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_hadolint_finds_nothing():
    """It refuses, among others, a last user that is root, words that a shell would split, and an entry point of one."""
    done = subprocess.run(["hadolint", ROOT / "Dockerfile"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_the_context_of_a_build_has_what_git_tracks_of_the_source_and_what_is_copied_alone():
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    sent = {line[1:].split("/")[0] for line in allowed if line.startswith("!")}
    assert "*" in allowed and all((ROOT / name).exists() for name in sent)
    for names in re.findall(r"^COPY (?!--from)(.*) \S+$", TEXT, flags=re.MULTILINE):
        assert {*names.split()} <= sent | {"."}
    tracked = subprocess.run(["git", "-C", ROOT, "ls-files"], capture_output=True, text=True, timeout=60)
    if tracked.returncode != 0 or not tracked.stdout:
        pytest.skip("not a git tree")
    assert {name.split("/")[0] for name in tracked.stdout.splitlines()} - {".ci", ".gitignore"} == sent


def test_the_base_is_a_dated_image_of_nvidia_and_the_test_image_alone_which_is_no_default_has_development_tools():
    before, *stages = re.split(r"^FROM ", re.sub(r"^ *#.*\n", "", TEXT, flags=re.MULTILINE), flags=re.MULTILINE)
    assert re.fullmatch(r"ARG BASE=nvcr\.io/nvidia/pytorch:\d\d\.\d\d-py3\s*", before)
    of = {stage.split()[2] if stage.split()[1:2] == ["AS"] else "": stage for stage in stages}
    assert [stage.split()[0] for stage in stages] == ["${BASE}", "${BASE}", "runtime", "runtime"]  # the last: default
    assert re.findall(r"^USER (\S+)", TEXT, flags=re.MULTILINE) == ["${USER_ID}", "0", "${USER_ID}"]
    assert {*re.findall(r"^ARG USER_ID=(\d+)$", TEXT, flags=re.MULTILINE)} == {"1000"}  # Kubernetes believes a number
    extras, runs = re.findall(r"^ARG EXTRAS=(.*)$", of["runtime"], flags=re.MULTILINE), r"\bgit\b"
    assert len(extras) == 1 and "dev" not in extras[0].split(",") and not re.search(runs, of["runtime"])
    (kept,) = re.findall(r"--constraint (\S+)", of["test"])
    assert ".[dev]" in of["test"] and re.search(runs, of["test"]) and f"/tmp/constraints {kept}" in of["runtime"]
    for stage in (of["runtime"], of["test"]):
        assert not re.search(r"^(RUN|COPY) ", stage.rpartition("\nUSER ")[2], flags=re.MULTILINE)
    assert "\nCOPY --from=ffcv " in TEXT and '\nCMD ["timedrun", "--help"]\n' in TEXT


def test_what_the_base_is_built_of_is_pinned_and_compared_after_the_installation():
    (kept,) = re.findall(r"kept='([^']+)'", TEXT)
    for name in ("torch", "torchvision", "numpy", "apex", "flash-attn", "flash_attn", "triton", "transformer_engine"):
        assert re.fullmatch(kept, name), name
    assert not re.fullmatch(kept, "transformers")
    before, _, after = TEXT[TEXT.index("kept=") :].partition("pip install")
    assert "> /tmp/records" in before and "> /tmp/kept" in before
    assert "sha256sum --check" in after and "exit 1" in after


def test_signals_reach_the_command_and_any_command_can_be_given():
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", TEXT, flags=re.MULTILINE)
    words = [*json.loads(entry), "sh", "-c", 'echo "$PPID:$1"', "sh", "two  words"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.stdout == f"{os.getpid()}:two  words\n", "a shell stays between the engine and the command"


def test_nothing_of_a_machine_or_a_person_is_written_into_the_image():
    for text in (TEXT, (ROOT / "scripts/build_image.sh").read_text()):
        assert not re.search(r"(?i)(password|passwd=|token|secret|api_key|BEGIN [A-Z ]*PRIVATE)", text)
        assert {*re.findall(r"https?://([^/\s]+)", text)} <= {"download.pytorch.org"}
        assert not re.search(r"(?<![\w.])/(work|opt|mnt|home|Users)/", text)


ENGINE = """#!/bin/sh
if [ "$1" = info ]; then exit {works}; fi
printf '%s\\n' {name} "$@" > {folder}/said
"""
TAG = f"timedrun:{VERSION}"
WORKS, BROKEN = 0, 1


@pytest.mark.parametrize(
    ("engines", "arguments", "chosen", "tag"),
    [
        ({"docker": WORKS, "podman": WORKS}, ["--build-arg", "BASE=a base"], "docker", TAG),
        ({"docker": BROKEN, "buildah": WORKS}, [], "buildah", TAG),
        ({"docker": BROKEN}, [], "", None),
        *(({"docker": WORKS}, given, "docker", None) for given in (["-ta:b"], ["--tag", "a:b"])),
        ({"docker": WORKS}, ["--target", "test"], "docker", None),  # which must not replace the default image
    ],
)
def test_the_first_engine_that_works_builds_under_the_tag_that_was_given(tmp_path, engines, arguments, chosen, tag):
    for tool in ("bash", "sh", "sed", "git", "dirname"):
        if place := shutil.which(tool):
            (tmp_path / tool).symlink_to(place)
    for name, works in engines.items():
        (tmp_path / name).write_text(ENGINE.format(name=name, works=works, folder=tmp_path))
        (tmp_path / name).chmod(0o755)
    script, environment = ROOT / "scripts/build_image.sh", {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run([script, *arguments], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode == 0) == bool(chosen), done.stderr
    if not chosen:
        assert "no working docker, podman or buildah" in done.stderr and "nothing was built" in done.stderr
        assert not (tmp_path / "said").exists()
        return
    said = (tmp_path / "said").read_text().splitlines()
    assert said[:2] == [chosen, "build"] and said[-len(arguments) - 1 :] == [*arguments, "."]
    assert [word for word in said if word.startswith("timedrun:")] == ([tag] if tag else [])
    assert f"VERSION={VERSION}" in said and {"DIRTY=true", "DIRTY=false"} & {*said}
    assert [word for word in said if re.fullmatch("COMMIT=([0-9a-f]{40,64}|unknown)", word)]
