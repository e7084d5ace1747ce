"""A whole, good submission of five synthetic logs, and every way of damaging it that the tests know the verdicts of."""

import copy
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlevents.event import Finding
from mlevents.package_checker.system_description import KEYS, OPTIONAL_KEYS
from mlevents.package_checker.tree import check_tree
from mlevents.record import read, result_files
from mlevents.summary import summarize
from tests.mlevents.conftest import Records, good_records, put, write_log

Change = Callable[[Path], object]

SYSTEM = "laptop"
RESULTS = f"results/{SYSTEM}/resnet"
IMPLEMENTATIONS = "benchmarks/resnet/implementations"
DESCRIBED = f"systems/{SYSTEM}.json"

DESCRIPTION = {
    **dict.fromkeys(KEYS, "N/A"),
    **dict.fromkeys(OPTIONAL_KEYS, ""),
    "submitter": "Nobody",
    "division": "open",
    "status": "onprem",
    "system_name": SYSTEM,
    "number_of_nodes": "1",
    "host_processors_per_node": "2",
    "host_processor_core_count": "64",
    "host_processor_vcpu_count": "128",
    "accelerators_per_node": "8",
    "accelerator_model_name": "Example A80",
    "cooling": "air",
    "other_software_stack": {"cuda": "13.0", "python": "3.11"},
}


def write_good_package(folder: Path) -> Path:
    """A submission with everything that the rules ask for, five runs of resnet; returns `folder`, its Nobody/."""
    files = {
        "LICENSE": "Apache License 2.0\n",
        "README.md": "Results of Nobody.\n",
        DESCRIBED: json.dumps(DESCRIPTION, indent=4),
        f"{IMPLEMENTATIONS}/torch/train.py": "print('train')\n",
        f"{IMPLEMENTATIONS}/torch/requirements.txt": "torch==2.13.0\n",
        f"{IMPLEMENTATIONS}/{SYSTEM}/{SYSTEM}_torch.json": json.dumps({"precision": "fp32"}),
        f"{IMPLEMENTATIONS}/{SYSTEM}/README.md": "bash run_and_time.sh\n",
        f"{IMPLEMENTATIONS}/{SYSTEM}/setup.sh": "pip install -r ../torch/requirements.txt\n",
        f"{IMPLEMENTATIONS}/{SYSTEM}/init_datasets.sh": "true\n",
        f"{IMPLEMENTATIONS}/{SYSTEM}/run_and_time.sh": "python ../torch/train.py\n",
    }
    for place, text in files.items():
        _write(folder / place, text)
    (folder / RESULTS).mkdir(parents=True)
    for number in range(5):
        write_log(folder / RESULTS / f"result_{number}.txt", good_records(seed=number + 1, accuracies=(0.5, 0.7, 0.76)))
    return folder


def write_manifest(folder: Path, commit: str = "0" * 40, dirty: bool = False) -> None:
    """A manifest.json with the digest of every file, as `timedrun package` writes one."""
    files = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }
    content = {"files": files, "source": {"commit": commit, "dirty": dirty}}
    (folder / "manifest.json").write_text(json.dumps(content))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _writes(place: str, text: str) -> Change:
    return lambda folder: _write(folder / place, text)


def _beside(name: str, text: str) -> Change:
    """Writes a file beside the results."""
    return _writes(f"{RESULTS}/{name}", text)


def _deletes(place: str) -> Change:
    return lambda folder: (shutil.rmtree if (folder / place).is_dir() else os.unlink)(folder / place)


def _renames(place: str, name: str) -> Change:
    return lambda folder: (folder / place).rename((folder / place).with_name(name))


def _describes(**values: Any) -> Change:
    """Sets fields of the system description."""
    return lambda folder: (folder / DESCRIBED).write_text(json.dumps(DESCRIPTION | values, indent=4))


def edit_logs(folder: Path, change: Callable[[Records], None], only: int | None = None) -> None:
    """Changes the records of every log, or of the first `only`."""
    for path in sorted((folder / RESULTS).glob("result_*.txt"))[:only]:
        records = [json.loads(line.removeprefix(":::MLLOG ")) for line in path.read_text().splitlines()]
        change(records)
        write_log(path, records)


def _logs(key: str, value: Any) -> Change:
    return lambda folder: edit_logs(folder, lambda records: put(records, key, value))


def _aborts(folder: Path) -> None:
    edit_logs(folder, lambda records: records[-1]["metadata"].update(status="aborted"))


def _breaks(number: int) -> Change:
    return lambda folder: [_result(folder, index).write_text("") for index in range(number)]


def _copies(number: int, *others: int) -> Change:
    """Copies a log over or beside others."""
    return lambda folder: [shutil.copy(_result(folder, number), _result(folder, other)) for other in others]


def _result(folder: Path, number: int) -> Path:
    return folder / RESULTS / f"result_{number}.txt"


def _adds_system(folder: Path) -> None:
    """The same logs once more, as those of a second system."""
    shutil.copytree(folder / f"results/{SYSTEM}", folder / "results/desktop")
    shutil.copytree(folder / IMPLEMENTATIONS / SYSTEM, folder / IMPLEMENTATIONS / "desktop")
    (folder / "systems/desktop.json").write_text(json.dumps({**DESCRIPTION, "system_name": "desktop"}))


def _names_another_system(folder: Path) -> None:
    _adds_system(folder)
    _logs("submission_platform", "desktop")(folder)


def _adds_edited_copy(folder: Path) -> None:
    _adds_system(folder)
    for path in (folder / "results/desktop/resnet").iterdir():
        text = path.read_text().replace('"laptop"', '"desktop"')
        path.write_text(text.replace('"key": "seed", "value": ', '"key": "seed", "value": 1'))


def _links(place: str, target: str) -> Change:
    return lambda folder: os.symlink(target, folder / place)


def _packed_then(change: Change) -> Change:
    return lambda folder: (write_manifest(folder), change(folder))


def _edits_log(folder: Path) -> None:
    edit_logs(folder, lambda records: records[-1].update(time_ms=records[-1]["time_ms"] - 1), only=1)


_PARAMETERS, _SYSTEM = "package_checker_params", f"results/{SYSTEM}"

MUTATIONS: dict[str, tuple[Change, str, str, str | None]] = {
    "four results": (_deletes(f"{RESULTS}/result_4.txt"), "run-count", "error", "fail"),
    "six results": (_copies(4, 5), "run-count", "error", "fail"),
    "one empty log": (_breaks(1), "result-no-log", "error", None),
    "two empty logs": (_breaks(2), "runs-failed", "error", "fail"),
    "every run aborted": (_aborts, "runs-failed", "error", "pass"),
    "one log five times": (_copies(0, 1, 2, 3, 4), "copied-log", "error", "pass"),
    "benchmark folder resnet50": (_renames(RESULTS, "resnet50"), "benchmark-folder", "error", None),
    "no benchmarks/": (_deletes("benchmarks"), "source-missing", "error", None),
    "description closed, logs open": (_describes(division="closed"), "division-agrees", "error", "fail"),
    "system_name of another file": (_describes(system_name="tower"), "system-name", "warning", None),
    "unknown file beside results": (_beside("notes.md", "x"), "unknown-file", "warning", None),
    "scaling.json in open": (_beside("scaling.json", '{"scaling_factor": 0.5}'), "scaling-file", "error", None),
    "bypass that is ignored": (_beside(_PARAMETERS, "rcp-bypass\n"), "checker-parameters", "warning", None),
    "bypass": (_beside(_PARAMETERS, "rcp-bypass"), "checker-bypass", "warning", None),
    "misspelling": (_writes(f"{_SYSTEM}/{_PARAMETERS}", "rcp_bypass"), "checker-parameters", "warning", None),
    "misspelt bypass at the top": (_writes(_PARAMETERS, "rcp_bypass\n"), "checker-parameters", "warning", None),
    "privateid.json": (_writes(f"results/{SYSTEM}/privateid.json", "{}"), "private-id", "warning", None),
    "no description": (_deletes(DESCRIBED), "system-without-description", "error", "breaks off"),
    "no results/": (_deletes("results"), "tree-layout", "error", "breaks off"),
    "system without results": (_deletes(RESULTS), "results-missing", "error", None),
    "logs of bert": (_logs("submission_benchmark", "bert"), "benchmark-agrees", "error", None),
    "logs of another organisation": (_logs("submission_org", "Rival"), "organization-agrees", "error", None),
    "logs of another system": (_names_another_system, "platform-agrees", "error", None),
    "logs under two systems": (_adds_system, "copied-log", "error", None),
    "edited logs under two systems": (_adds_edited_copy, "copied-log", "error", None),
    "result is a link out": (_links(f"{RESULTS}/result_5.txt", "/etc/hostname"), "link", "error", None),
    "log changed after packaging": (_packed_then(_edits_log), "manifest", "error", None),
    "packaged without a commit": (lambda folder: write_manifest(folder, "unknown"), "provenance", "warning", None),
    "packaged with changes": (lambda folder: write_manifest(folder, dirty=True), "provenance", "warning", None),
    "file added after packaging": (_packed_then(_writes("benchmarks/x.py", "")), "manifest", "error", None),
}
"""Damage to a good package -> change, strict rule and its level, and what MLCommons' package checker does: it fails or
passes, or "breaks off" in a traceback; None where it is not run, since it looks at nothing of the kind."""


def tree_findings(folder: Path, ruleset: str | None = "2.0.0") -> list[Finding]:
    """The findings about a submission as a whole."""
    return check_tree(folder, {path: summarize(read(path)) for path in result_files(folder)}, ruleset)


def mutated(good: Path, to: Path, change: Change) -> Path:
    """A copy of `good` below `to`, damaged."""
    folder = Path(shutil.copytree(good, to / good.name))
    change(folder)
    return folder


def description(**values: Any) -> dict[str, Any]:
    """A good system description with `values` in it."""
    return copy.deepcopy(DESCRIPTION) | values
