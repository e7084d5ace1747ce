"""A person's answers for the fields of MLPerf's system description that cannot be detected."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from judging.ground.errors import UsageError, nearest
from judging.ground.file_kind import read_text
from judging.ground.result_files import write_json
from mlevents.event import json_fault
from mlevents.package_checker.system_description import KEYS, OPTIONAL_KEYS, unanswered

OVERRIDE: Final = "override"
SET_BY_RUNS: Final = ("submitter", "division", "status", "system_name")
"""Keys that are set by a run's config and log and cannot be answered."""

LARGEST: Final = 1 << 20
"""Maximum bytes of an answers file."""

QUESTIONS: Final[dict[str, str]] = {
    "number_of_nodes": "how many machines a run used",
    "host_processors_per_node": "processors (sockets) of one machine",
    "host_processor_model_name": "maker and model of the processor",
    "host_processor_core_count": "number of cores of one processor",
    "host_processor_vcpu_count": "virtual CPUs of one processor, if cores are not known",
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
    "hw_notes": "notes on the hardware",
    "framework": "the framework and its version",
    "other_software_stack": "versions of drivers and libraries",
    "operating_system": "its name and version",
    "sw_notes": "notes on the software",
}
"""Question by key, for all keys that a person can answer."""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Content of an answers file: `given` fills empty values, `override` replaces detected ones."""

    path: Path
    given: Mapping[str, str]
    override: Mapping[str, str]

    def applied(self, description: Mapping[str, Any]) -> dict[str, Any]:
        """Return `description` with the answers, its keys in their order. Raise UsageError, which lists them all, if
        answers that are not under "override" contradict detected values."""
        contradictions = [
            f"{key} was detected as {description[key]!r}, but the answer is {answer!r}"
            for key, answer in self.given.items()
            if description.get(key) and description[key] != answer
        ]
        if contradictions:
            raise UsageError(
                f"{self.path}: {'; '.join(contradictions)}. Remove the answer, or move it to "
                f'"{OVERRIDE}" if the detected value is wrong.'
            )
        return {**description, **self.given, **self.override}


def read_answers(path: Path) -> Answers:
    """Read the answers in the JSON file `path`: text by key, "" for an open question; "override" holds answers that
    replace detected values. Raise UsageError, which lists all invalid keys and answers, or names an unreadable file."""
    try:
        content = json.loads(read_text(path, LARGEST), object_pairs_hook=_once)
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{path}: cannot be read as JSON ({json_fault(error)}); `timedrun doctor --system --answers FILE` writes"
            " a file to fill in."
        ) from None
    if not isinstance(content, dict) or not isinstance(override := content.pop(OVERRIDE, {}), dict):
        raise UsageError(f'{path}: the file or its "{OVERRIDE}" is not a JSON object of keys and answers.')
    both = [f"{key} is answered twice" for key in content if content[key] and override.get(key)]
    if problems := [*_problems(content), *_problems(override), *both]:
        raise UsageError(f"{path}: {'; '.join(problems)}; no answers were used.")
    return Answers(
        path=path,
        given={key: answer for key, answer in content.items() if answer},
        override={key: answer for key, answer in override.items() if answer},
    )


def open_keys(description: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the unanswered keys that MLPerf requires, and the optional ones."""
    needed = [key for key in unanswered(description) if key not in SET_BY_RUNS]
    other: list[str] = [key for key in KEYS if key in OPTIONAL_KEYS and key not in needed and not description.get(key)]
    return needed, other


def write_questions(path: Path, description: Mapping[str, Any]) -> None:
    """Write an answers file with every open key of `description`, required ones first, each with "". Raise UsageError
    if `path` exists, and so may hold answers."""
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path} already exists and was not overwritten; choose a new file.")
    needed, other = open_keys(description)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, dict.fromkeys([*needed, *other], ""))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    repeated = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
    if repeated:
        raise ValueError(f"duplicate key {repeated[0]!r}")
    return dict(pairs)


def _problems(answers: Mapping[str, Any]) -> Iterator[str]:
    for key, answer in answers.items():
        if key in SET_BY_RUNS:
            yield f"{key} is set by the runs' logs and cannot be answered"
        elif key not in QUESTIONS:
            yield f"a system description has no key {key!r}{nearest(key, QUESTIONS).replace(' Did', '; did')}"
        elif not isinstance(answer, str):
            yield f"{key} is {answer!r}, not text: put it in quotes"
        elif not answer.isprintable():  # "" is printable
            yield f"{key} contains a line break or a control character"
