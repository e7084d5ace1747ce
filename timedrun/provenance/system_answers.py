"""A person's answers to what a machine cannot tell of itself, for MLPerf's system description."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mlevents.package_checker.system_description import KEYS, OPTIONAL_KEYS, unanswered
from timedrun.errors import UsageError
from timedrun.storage.result_files import write_json

OVERRIDE: Final = "override"
SAID_BY_RUNS: Final = ("submitter", "division", "status", "system_name")
"""Keys that a run's own config and log state; an answer could only contradict them."""

LARGEST: Final = 1 << 20
"""Bytes of an answers file."""

ASKED: Final[dict[str, str]] = {
    "number_of_nodes": "how many machines a run used",
    "host_processors_per_node": "processors (sockets) of one machine",
    "host_processor_model_name": "maker and model of the processor",
    "host_processor_core_count": "cores of one processor",
    "host_processor_vcpu_count": "virtual CPUs of one processor, where cores are not known",
    "host_processor_frequency": "such as 2000 MHz",
    "host_processor_caches": "such as L1: 32 KiB per core, L2: 1 MiB per core, L3: 32 MiB",
    "host_processor_interconnect": "between the sockets, such as 3x 10.6 GT/s UPI",
    "host_memory_capacity": "such as 384 GB",
    "host_memory_configuration": "number, size and kind of the memory modules, such as 12 x 32 GB DDR5-4800",
    "host_storage_type": "such as NVMe SSD",
    "host_storage_capacity": "such as 2x 960 GB + 4x 3.8 TB",
    "host_networking": "cards or ports and their speed, such as 8x InfiniBand 400 Gbit/s",
    "host_networking_topology": "between the machines, such as fat tree",
    "accelerators_per_node": "accelerators of one machine that a run used",
    "accelerator_model_name": "maker and model of the accelerator",
    "accelerator_host_interconnect": "such as PCIe 5.0 x16",
    "accelerator_frequency": "such as 1410 MHz",
    "accelerator_on-chip_memories": "such as L1: 108x 192 KiB, L2: 40 MiB",
    "accelerator_memory_configuration": "such as HBM2e",
    "accelerator_memory_capacity": "such as 80 GB",
    "accelerator_interconnect": "such as 12x 25 GT/s NVLink",
    "accelerator_interconnect_topology": "such as mesh or switched",
    "cooling": "air, liquid, immersion ...",
    "hw_notes": "anything a reader should know of the hardware",
    "framework": "the framework and its version",
    "other_software_stack": "versions of drivers and libraries",
    "operating_system": "its name and version",
    "sw_notes": "anything a reader should know of the software",
}
"""What is asked for under each key that a person can answer."""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What a file of answers says: `given` fills what is empty, `override` replaces what was measured."""

    path: Path
    given: Mapping[str, str]
    override: Mapping[str, str]

    def applied(self, description: Mapping[str, Any]) -> dict[str, Any]:
        """`description` with the answers in it, its keys in their order.

        Raises:
            UsageError: an answer contradicts what was measured and is not under "override"; all such are named.
        """
        contradictions = [
            f"{key} was measured as {description[key]!r}, the answer is {answer!r}"
            for key, answer in self.given.items()
            if description.get(key) and description[key] != answer
        ]
        if contradictions:
            raise UsageError(
                f"{self.path}: {'; '.join(contradictions)}. Leave the answer out, or put it under "
                f'"{OVERRIDE}" if the measurement is wrong.'
            )
        return {**description, **self.given, **self.override}


def read_answers(path: Path) -> Answers:
    """The answers in the JSON file `path`: text by key, "" for none yet, those under "override" whatever was measured.

    Raises:
        UsageError: it cannot be read, or names a key that does not exist or cannot be answered; everything at once.
    """
    try:
        with open(path, "rb") as file:
            raw = file.read(LARGEST + 1)
        if len(raw) > LARGEST:
            raise ValueError(f"longer than {LARGEST} bytes")
        content = json.loads(raw, object_pairs_hook=_once)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path}: no JSON to read ({error}); `timedrun system --out FILE` writes one to fill in."
        ) from None
    if not isinstance(content, dict) or not isinstance(override := content.pop(OVERRIDE, {}), dict):
        raise UsageError(f'{path}: not a JSON object of keys and answers, or its "{OVERRIDE}" is none.')
    both = [f"{key} is answered twice" for key in content if content[key] and override.get(key)]
    if complaints := [*_complaints(content), *_complaints(override), *both]:
        raise UsageError(f"{path}: {'; '.join(complaints)}; nothing was answered.")
    return Answers(
        path=path,
        given={key: answer for key, answer in content.items() if answer},
        override={key: answer for key, answer in override.items() if answer},
    )


def open_keys(description: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The keys a person still has to answer, and those that are empty and may stay so."""
    needed = [key for key in unanswered(description) if key not in SAID_BY_RUNS]
    other: list[str] = [key for key in KEYS if key in OPTIONAL_KEYS and key not in needed and not description.get(key)]
    return needed, other


def write_questions(path: Path, description: Mapping[str, Any]) -> None:
    """Write a file of answers for `description`: every open key, those first that MLPerf's rules need, with "".

    Raises:
        UsageError: `path` exists, since it may hold answers, or cannot be written.
    """
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path} exists and may hold answers; it is left as it is. Name a new file.")
    needed, other = open_keys(description)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, dict.fromkeys([*needed, *other], ""))
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror}).") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key!r} stands there twice")
        found[key] = value
    return found


def _complaints(answers: Mapping[str, Any]) -> Iterator[str]:
    for key, answer in answers.items():
        if key in SAID_BY_RUNS:
            yield f"{key} is said by the runs' own logs and cannot be answered"
        elif key not in ASKED:
            near = difflib.get_close_matches(key, ASKED, n=1, cutoff=0.5)
            meant = f"; did you mean {near[0]}?" if near else ""
            yield f"a system description has no {key!r}{meant}"
        elif not isinstance(answer, str):
            yield f"{key} is {answer!r}, but an answer is text: write it in quotes"
        elif not answer.isprintable():  # "" is printable
            yield f"{key} holds a line break or a control character"
