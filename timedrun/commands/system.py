"""`timedrun system`: MLPerf's description of this machine, and what a person has to add to it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from timedrun.errors import ExitCode
from timedrun.provenance.system import describe
from timedrun.provenance.system_answers import ASKED, SAID_BY_RUNS, open_keys, read_answers, write_questions


def system(arguments: argparse.Namespace) -> ExitCode:
    """Print the description and the open questions; with --out write these as a file to be filled in."""
    description: dict[str, Any] = dict(this_machine())
    if arguments.answers:
        description = read_answers(Path(arguments.answers)).applied(description)
    if arguments.out:
        write_questions(Path(arguments.out), description)
    needed, other = open_keys(description)
    if arguments.json:
        print(json.dumps({"description": description, "needed": needed, "optional": other}, indent=2))
        return ExitCode.OK
    print("This machine:")
    print("\n".join(_rows((key, _words(value)) for key, value in description.items() if key not in SAID_BY_RUNS)))
    for title, asked in (("Needed by MLPerf's rules and not known:", needed), ("Not known, may stay empty:", other)):
        if asked:
            print("\n".join(["", title, *_rows((key, ASKED[key]) for key in asked)]))
    print(f"\nSaid by each run's config and log: {', '.join(SAID_BY_RUNS)}.")
    if arguments.out:
        print(f"Fill in {arguments.out} and give it to: timedrun package ... --answers {arguments.out}")
    return ExitCode.OK


def this_machine() -> dict[str, Any]:
    """The description of this machine alone, with all of its accelerators; what runs say of themselves is empty."""
    accelerators = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device = "cuda" if accelerators else "cpu"
    return dict(describe("", "", division="", status="", ranks=max(1, accelerators), device=device, nodes=1))


def _rows(pairs: Iterable[tuple[str, str]]) -> list[str]:
    return [f"  {key:34}{words}".rstrip() for key, words in pairs]


def _words(value: str | dict[str, str]) -> str:
    return value if isinstance(value, str) else ", ".join(f"{name} {version}" for name, version in value.items())
