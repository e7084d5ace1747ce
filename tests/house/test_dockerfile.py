"""What of the Dockerfile and of scripts/build_image.sh can be held to without a container engine."""

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions with their arguments, continuation lines joined and comments left out."""
    lines = "\n".join(line for line in TEXT.splitlines() if not line.lstrip().startswith("#"))
    joined = lines.replace("\\\n", " ").splitlines()
    return [(word.upper(), rest.strip()) for word, _, rest in (line.partition(" ") for line in joined if line.strip())]


def of_kind(kind: str) -> list[str]:
    return [rest for word, rest in instructions() if word == kind]


def stage(name: str) -> list[tuple[str, str]]:
    found = instructions()
    starts = [number for number, (word, _) in enumerate(found) if word == "FROM"]
    (start,) = [number for number in starts if found[number][1].endswith(f" AS {name}")]
    return found[start : next(number for number in [*starts, len(found)] if number > start)]


def context() -> list[Path]:
    """The files that .dockerignore lets into a build: the last pattern that matches a path or a folder above it decides
    (Docker's documentation, "Build context", .dockerignore files)."""
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    rules = [(line.removeprefix("!"), line.startswith("!")) for line in patterns]

    def matches(path: str, pattern: str) -> bool:
        above = ["/".join(path.split("/")[:depth]) for depth in range(1, path.count("/") + 2)]
        if pattern.startswith("**/"):
            return any(fnmatch.fnmatchcase(part, pattern[3:]) for part in path.split("/"))
        return any(fnmatch.fnmatchcase(one, pattern) and one.count("/") == pattern.count("/") for one in above)

    def kept(path: str) -> bool:
        decided = [keep for pattern, keep in rules if matches(path, pattern)]
        return decided[-1] if decided else True

    paths: list[Path] = []
    for folder, folders, names in os.walk(ROOT):
        here = Path(folder).relative_to(ROOT)
        if here.parts[:1] == (".venv",) or here.parts[:1] == (".git",):
            assert not kept(here.as_posix())
            folders.clear()
            continue
        paths += [ROOT / here / name for name in names if kept((here / name).as_posix())]
    return paths


def test_both_shapes_come_from_one_argument_whose_default_is_a_dated_nvidia_image():
    before_from = [rest for word, rest in instructions()[: [w for w, _ in instructions()].index("FROM")]]
    assert len(before_from) == 1
    assert re.fullmatch(r"BASE=nvcr\.io/nvidia/pytorch:\d\d\.\d\d-py3", before_from[0])
    assert [rest.split()[0] for rest in of_kind("FROM")] == ["${BASE}", "${BASE}", "runtime", "runtime"]


def test_every_file_that_is_copied_exists_in_the_context():
    sent = {path.relative_to(ROOT).as_posix() for path in context()}
    for arguments in of_kind("COPY"):
        words = shlex.split(arguments)
        if words[0].startswith("--from="):
            assert words[0] == "--from=ffcv" and any(rest.endswith("AS ffcv") for rest in of_kind("FROM"))
            continue
        for source in words[:-1]:
            assert source == "." or source in sent, source


def test_what_git_tracks_of_the_source_is_in_the_context():
    tracked = subprocess.run(["git", "-C", ROOT, "ls-files"], capture_output=True, text=True, timeout=60)
    if tracked.returncode != 0 or not tracked.stdout:
        pytest.skip("not a git tree")
    sent = {path.relative_to(ROOT).as_posix() for path in context()}
    left_out = {name for name in tracked.stdout.splitlines() if (ROOT / name).exists()} - sent
    assert {name for name in left_out if not name.startswith(("results/", ".ci/")) and name != ".gitignore"} == set()


def test_hadolint_finds_nothing():
    done = subprocess.run(["hadolint", ROOT / "Dockerfile"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("target", ["runtime", "test"])
def test_the_image_does_not_run_as_root_and_its_user_is_a_number(target):
    found = stage(target)
    assert [rest for word, rest in found if word == "USER"][-1] == "${USER_ID}"  # Kubernetes believes numbers only
    (number,) = [rest.split("=")[1] for word, rest in found if word == "ARG" and rest.startswith("USER_ID=")]
    assert int(number) >= 1000
    after = [word for word, _ in found][max(n for n, (word, _) in enumerate(found) if word == "USER") :]
    assert "RUN" not in after and "COPY" not in after


def test_the_default_is_the_runtime_image_and_only_the_test_image_has_development_tools():
    assert instructions()[-1] == ("FROM", "runtime")
    (extras,) = [rest for word, rest in stage("runtime") if rest.startswith("EXTRAS=")]
    assert "dev" not in extras.partition("=")[2].split(",")
    assert not [rest for word, rest in stage("runtime") if word == "RUN" and re.search(r"\bgit\b", rest)]
    (added,) = [rest for word, rest in stage("test") if word == "RUN"]
    assert ".[dev]" in added and re.search(r"\bgit\b", added)
    kept = re.search(r"--constraint (\S+)", added)
    assert kept and any(f"/tmp/constraints {kept[1]}" in rest for _, rest in stage("runtime"))


def test_signals_reach_the_command_and_any_command_can_be_given():
    (entry,) = of_kind("ENTRYPOINT")
    words = json.loads(entry)
    done = subprocess.run([*words, "sh", "-c", 'echo "$PPID:$1"', "sh", "two  words"], capture_output=True, text=True)
    assert done.stdout == f"{os.getpid()}:two  words\n", "a shell stays between the engine and the command"
    assert json.loads(of_kind("CMD")[0]) == ["timedrun", "--help"]


def test_what_the_base_is_built_of_is_pinned_and_compared_after_the_installation():
    (run,) = [rest for rest in of_kind("RUN") if "--constraint /tmp/constraints" in rest]
    kept = re.search(r"kept='([^']+)'", run)
    assert kept
    for name in ("torch", "torchvision", "numpy", "apex", "flash-attn", "flash_attn", "triton", "transformer_engine"):
        assert re.fullmatch(kept[1], name), name
    assert not re.fullmatch(kept[1], "transformers")
    before, _, after = run.partition("pip install")
    assert "> /tmp/records" in before and "> /tmp/kept" in before
    assert "sha256sum --check" in after and "exit 1" in after


def test_nothing_of_a_machine_or_a_person_is_written_into_the_image():
    for text in (TEXT, (ROOT / "scripts/build_image.sh").read_text()):
        assert not re.search(r"(?i)(password|passwd=|token|secret|api_key|BEGIN [A-Z ]*PRIVATE)", text)
        assert set(re.findall(r"https?://([^/\s]+)", text)) <= {"download.pytorch.org"}
        assert not re.search(r"(?<![\w.])/(work|opt|mnt|home|Users)/", text)


ENGINE = """#!/bin/sh
if [ "$1" = info ]; then exit {works}; fi
printf '%s\\n' {name} "$@" > "$SAID"
"""


def build(folder, engines, *arguments):
    """scripts/build_image.sh with made-up engines on the path, working or not, and what the chosen one was told."""
    tools = folder / "bin"
    tools.mkdir()
    for tool in ("bash", "sh", "sed", "git", "dirname"):
        if place := shutil.which(tool):
            (tools / tool).symlink_to(place)
    for name, works in engines.items():
        (tools / name).write_text(ENGINE.format(name=name, works=0 if works else 1))
        (tools / name).chmod(0o755)
    said = folder / "said"
    done = subprocess.run(
        [ROOT / "scripts/build_image.sh", *arguments],
        env={"PATH": str(tools), "SAID": str(said), "HOME": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
    )
    return done, said.read_text().splitlines() if said.exists() else []


@pytest.mark.parametrize(
    ("engines", "chosen"),
    [
        ({"docker": True, "podman": True, "buildah": True}, "docker"),
        ({"docker": False, "podman": True, "buildah": True}, "podman"),
        ({"podman": True, "buildah": True}, "podman"),
        ({"buildah": True}, "buildah"),
    ],
)
def test_the_first_engine_that_works_builds(tmp_path, engines, chosen):
    done, said = build(tmp_path, engines, "--build-arg", "BASE=a base")
    assert done.returncode == 0, done.stderr
    assert said[:2] == [chosen, "build"] and said[-3:] == ["--build-arg", "BASE=a base", "."]
    assert f"timedrun:{PROJECT['version']}" == said[said.index("--tag") + 1] and f"VERSION={PROJECT['version']}" in said
    (commit,) = [word for word in said if word.startswith("COMMIT=")]
    assert re.fullmatch("COMMIT=([0-9a-f]{40,64}|unknown)", commit)
    assert {"DIRTY=true", "DIRTY=false"} & set(said)


@pytest.mark.parametrize("arguments", [["-t", "a:b"], ["-ta:b"], ["--tag", "a:b"], ["--tag=a:b"]])
def test_an_image_that_is_given_a_tag_does_not_take_the_default_one(tmp_path, arguments):
    done, said = build(tmp_path, {"docker": True}, *arguments, "--target", "test")
    assert done.returncode == 0, done.stderr
    assert said[-len(arguments) - 3 :] == [*arguments, "--target", "test", "."]
    assert not [word for word in said if word.startswith("timedrun:")]


def test_a_target_without_a_tag_cannot_replace_the_default_image(tmp_path):
    assert "--tag" not in build(tmp_path, {"docker": True}, "--target", "test")[1]


def test_without_an_engine_that_works_it_says_so(tmp_path):
    done, said = build(tmp_path, {"docker": False})
    assert done.returncode == 1 and not said
    assert "no working docker, podman or buildah" in done.stderr and "nothing was built" in done.stderr
