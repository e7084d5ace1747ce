"""MLPerf's system description of this machine, with the fields to fill in: `timedrun doctor --system`."""

import argparse
import json
from typing import Any

import torch

from judging.ground.errors import ExitCode
from timedrun.runner.provenance.system import describe
from timedrun.runner.provenance.system_answers import SET_BY_RUNS, open_keys, read_answers, write_questions


def system(arguments: argparse.Namespace) -> ExitCode:
    """Print the description and the open questions, which a new file of --answers gets to be filled in."""
    accelerators = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device = "cuda" if accelerators else "cpu"
    # All accelerators of this machine; the keys that are set by runs are empty.
    description: dict[str, Any] = {
        **describe("", "", division="", status="", ranks=max(1, accelerators), device=device)
    }
    file = arguments.answers
    answers = read_answers(file) if file and file.exists() else None
    if answers:
        description = answers.applied(description)
    if file and answers is None:
        write_questions(file, description)
    needed, other = open_keys(description)
    if arguments.json:
        print(json.dumps({"description": description, "needed": needed, "optional": other}, indent=2))
        return ExitCode.OK
    settings = ("organization", "division", "status", "platform")
    print("This machine:")
    for key, value in description.items():
        if key not in SET_BY_RUNS:
            print(f"  {key:34}{_text(value)}".rstrip())
    for title, keys in (("Required by MLPerf's rules, unknown:", needed), ("Unknown, optional:", other)):
        if keys:
            print("\n".join(["", title, *(f"  {key}" for key in keys)]))
    print(f"\nTaken from each run's config and log: {', '.join(SET_BY_RUNS)}. Settings of `timedrun run`:")
    print(" ".join(f"  --submission.{setting}" for setting in settings))
    if file:
        print(f"Fill in {file}, then pass it on: timedrun package ... --answers {file}")
    return ExitCode.OK


def _text(value: str | dict[str, str]) -> str:
    return value if isinstance(value, str) else ", ".join(f"{name} {version}" for name, version in value.items())
