"""Kill `timedrun prepare` with SIGKILL at random moments, resume it, and compare the bytes with an undisturbed run.

Usage: python benchmarks/prepare_kills.py --images PATH ... --out FILE.json [--kills 20] [--formats jpeg raw beton]
       [--workers 2] [--seed 1] [--work FOLDER]

A trial starts with an empty folder, kills the command and all its processes one to three times, each time after a
random part of the duration of an undisturbed run, and then lets it finish; each start has one worker or --workers.
Trials of a format continue until --kills hit a running command.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from timedrun.commands.show import print_table
from timedrun.provenance import system
from timedrun.storage.result_files import write_json

FORMATS = {
    "jpeg": ["--data.loader", "turbojpeg", "--data.store.format", "jpeg"],
    "raw": ["--data.loader", "raw", "--data.store.format", "raw", "--data.store.size", "256"],
    "beton": ["--data.loader", "ffcv", "--data.store.format", "beton", "--data.store.size", "500"],
}
LIMIT_SECONDS = 1800.0
POLL_SECONDS = 0.005


def start(name: str, images: Sequence[Path], folder: Path, workers: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "timedrun", "prepare", "image_classification", "imagenet_baseline"]
    command += ["--images", *map(str, images), "--data-folder", str(folder), "--workers", str(workers), *FORMATS[name]]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def wait(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate(timeout=LIMIT_SECONDS)
    if process.returncode:
        raise SystemExit(f"prepare ended with exit code {process.returncode}:\n{errors[-4000:]}")


def killed(process: subprocess.Popen[str], seconds: float) -> bool:
    """Kill all processes of the command after `seconds` and wait for the last; return False if it had finished."""
    try:
        process.communicate(timeout=seconds)
        if process.returncode:
            raise SystemExit(f"prepare ended by itself with exit code {process.returncode}.")
        return False
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        while members(process.pid):
            time.sleep(POLL_SECONDS)
        return True


def members(group: int) -> list[int]:
    """Return the live processes of a process group."""
    found = []
    for pid in psutil.pids():
        try:
            if os.getpgid(pid) == group and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except (ProcessLookupError, PermissionError, psutil.Error):
            continue
    return found


def contents(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file in `folder` by relative path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as stream:
                found[path.relative_to(folder).as_posix()] = hashlib.file_digest(stream, "sha256").hexdigest()
    return found


def undisturbed(name: str, images: Sequence[Path], folder: Path, workers: int) -> tuple[float, float, dict[str, str]]:
    """Return the seconds until the first file and until the end of an undisturbed run, and its contents."""
    began = time.monotonic()
    process = start(name, images, folder, workers)
    first = None
    while process.poll() is None:
        if first is None and folder.is_dir() and any(path.is_file() for path in folder.rglob("*")):
            first = time.monotonic() - began
        time.sleep(POLL_SECONDS)
    seconds = time.monotonic() - began
    wait(process)
    return first or 0.0, seconds, contents(folder)


def trial(
    name: str, images: Sequence[Path], folder: Path, workers: int, times: tuple[float, float], random_: random.Random
) -> dict[str, Any]:
    """Kill one to three times, mostly after the first file exists, then run to the end."""
    first, whole = times
    kills = []
    for _ in range(random_.randint(1, 3)):
        seconds = random_.uniform(0.9 * first, whole)
        count = random_.choice([1, workers])
        if not killed(start(name, images, folder, count), seconds):
            break
        files = sum(path.is_file() for path in folder.rglob("*")) if folder.is_dir() else 0
        manifest = any(folder.glob("timedrun_images.json"))
        kills.append({"seconds": seconds, "workers": count, "files_left": files, "manifest_left": manifest})
    wait(start(name, images, folder, random_.choice([1, workers])))
    return {"kills": kills}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", nargs="+", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--formats", nargs="+", choices=list(FORMATS), default=list(FORMATS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=Path, help="make the stores there")
    given = parser.parse_args()
    rows = []
    if given.work is not None:
        given.work.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="timedrun_kills_", dir=given.work) as temporary:
        for name in given.formats:
            random_ = random.Random(f"{given.seed} {name}")
            first, whole, expected = undisturbed(name, given.images, Path(temporary) / name, given.workers)
            trials: list[dict[str, Any]] = []
            while sum(len(one["kills"]) for one in trials) < given.kills:
                folder = Path(temporary) / f"{name}_{len(trials) + 1}"
                found = trial(name, given.images, folder, given.workers, (first, whole), random_)
                made = contents(folder)
                different = sorted({path for path, _ in made.items() ^ expected.items()})
                trials.append(found | {"same_bytes": not different, "different": different})
                shutil.rmtree(folder)
                words = "same bytes" if not different else f"DIFFERENT: {', '.join(different[:5])}"
                print(f"{name}, trial {len(trials)}: {len(found['kills'])} kills, {words}", file=sys.stderr, flush=True)
            rows.append(
                {
                    "format": name,
                    "seconds_undisturbed": whole,
                    "seconds_to_the_first_file": first,
                    "files": len(expected),
                    "trials": trials,
                }
            )
    everything = all(one["same_bytes"] for row in rows for one in row["trials"])
    settings = {"kills": given.kills, "workers": given.workers, "seed": given.seed}
    environment = system.environment().splitlines()
    write_json(given.out, settings | {"formats": rows, "all_same_bytes": everything, "environment": environment})
    table = []
    for row in rows:
        kills = [kill for one in row["trials"] for kill in one["kills"]]
        after = sum(kill["files_left"] > 0 for kill in kills)
        same = sum(one["same_bytes"] for one in row["trials"])
        cells = [f"{len(kills)}, {after} with files written", f"{same} of {len(row['trials'])}"]
        table.append([row["format"], f"{row['files']}", f"{row['seconds_undisturbed']:.1f} s", *cells])
    print_table(["format", "files", "undisturbed", "kills", "same bytes"], table)
    print(json.dumps({"all_same_bytes": everything}))
    if not everything:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
