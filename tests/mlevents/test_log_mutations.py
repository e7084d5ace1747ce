"""Mutations of a good log: the strict checks refuse each of them, MLCommons' checker some; what failed never passes."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlevents import mlcommons
from mlevents.checks.log_check import check_record
from mlevents.record import read
from tests.mlevents.conftest import Change, Records, good_records, lines_of, named, shifting
from tests.mlevents.conftest import noting as note
from tests.mlevents.conftest import putting as put

ACCURACY = "eval_accuracy"
RULESET = "2.0.0"


def good_log() -> Records:
    """Return the log of an open resnet run of three epochs."""
    return good_records(seed=7, accuracies=(0.4, 0.71, 0.7612))


def move(key: str, behind: str) -> Change:
    """Move a record behind another."""

    def change(records: Records) -> None:
        moved = records.pop(records.index(named(records, key)))
        records.insert(records.index(named(records, behind)) + 1, moved)

    return change


def cut_off(records: Records) -> None:
    """Number the epochs as if the first two were missing."""
    for record in records:
        if record["key"] in ("epoch_start", "epoch_stop"):
            record["metadata"]["epoch_num"] += 2


MUTATIONS: dict[str, tuple[Change, str, str]] = {  # what MLCommons' checker says, and the rule of the strict error
    "aborted": (note("run_stop", status="aborted"), "pass", "status-success"),
    "target missed at last": (put(ACCURACY, 0.7589, -1), "pass", "target-reached"),
    "not a number at last": (put(ACCURACY, float("nan"), -1), "pass", "record-number"),
    "digits as ImageNet": (put("train_samples", 1437), "pass", "dataset-size"),
    "run_stop before run_start in time": (shifting(-(10**10), "run_stop"), "pass", "clock-order"),
    "cache cleared after run_stop": (move("cache_clear", "run_stop"), "pass", "cache-clear"),
    "run_start twice": (
        lambda r: r.insert(r.index(named(r, "run_start")) + 1, named(r, "run_start") | {"metadata": {"again": 1}}),
        *("pass", "one-occurrence"),
    ),
    "first epochs cut off": (cut_off, "pass", "epoch-numbering"),
    "an evaluation never stops": (lambda r: r.remove(named(r, "eval_stop", -1)), "pass", "pairs"),
    "no epoch of the accuracy": (
        lambda r: named(r, ACCURACY)["metadata"].pop("epoch_num"),
        "fail",
        "required-metadata",
    ),
    "no organization": (lambda r: r.remove(named(r, "submission_org")), "fail", "required-key"),
    "status of no round": (put("submission_status", "rdi"), "fail", "vocabulary"),
    "division after init_stop": (move("submission_division", "init_stop"), "fail", "submission-order"),
    "init of 241 minutes": (shifting(-241 * 60_000, "init_start", "cache_clear"), "fail", "init-limit"),
    "run_start after the first block": (move("run_start", "block_start"), "fail", "before-run-start"),
    "null": (put(ACCURACY, None), "fail", "quality-range"),
    "no metadata": (lambda r: named(r, "seed").pop("metadata"), "fail", "record-metadata"),
}


def test_a_mutation_is_refused_by_its_rule_and_has_mlcommons_known_verdict(tmp_path):
    changes = [*(change for change, _, _ in MUTATIONS.values()), lambda records: None]
    paths = []
    for number, change in enumerate(changes):
        change(records := good_log())
        paths.append(tmp_path / f"result_{number}.txt")
        paths[-1].write_text("\n".join(["a banner", "", *lines_of(records)]) + "\n")
    errors = [
        {finding.rule for finding in check_record(read(path), RULESET) if finding.level == "error"} for path in paths
    ]
    verdicts = [verdict.verdict for verdict in mlcommons.check_logs(paths, RULESET)]
    assert (errors.pop(), verdicts.pop()) == (set(), "pass")
    assert dict(zip(MUTATIONS, verdicts, strict=True)) == {name: said for name, (_, said, _) in MUTATIONS.items()}
    assert not [name for name, found in zip(MUTATIONS, errors, strict=True) if MUTATIONS[name][2] not in found]


FATAL = {
    "target missed": put(ACCURACY, 0.7, -1),
    "aborted": note("run_stop", status="aborted"),
    "run_stop in the past": shifting(-(10**10), "run_stop"),
}


def spoiled(records: Records, seed: int, edits: int) -> list[str]:
    """Random deletions, repetitions, swaps and other values on the lines of `records` that no fatal flaw is on."""
    chance, lines = random.Random(seed), lines_of(records)
    kept = ("run_stop", "run_start", ACCURACY, "submission_benchmark")
    free = [place for place, record in enumerate(records) if record["key"] not in kept]
    for _ in range(edits):
        place, other = chance.choice(free), chance.choice(free)
        choice = chance.randrange(4)
        if choice == 0:
            lines[place] = ""
        elif choice == 1:
            lines[place] = f"{lines[place]}\n{lines[place]}"
        elif choice == 2:
            lines[place], lines[other] = lines[other], lines[place]
        else:
            value = chance.choice(["null", "-1", "1e400", '"resnet"', "[]", "{}", "true", "0.99"])
            lines[place] = lines[place].replace('"value": null', f'"value": {value}')
    return lines


@pytest.mark.parametrize("flaw", FATAL)
@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), edits=st.integers(0, 12))
def test_what_failed_never_passes_whatever_else_is_edited(tmp_path_factory, flaw, seed, edits):
    records = good_log()
    FATAL[flaw](records)
    path = tmp_path_factory.mktemp("spoiled") / "result_0.txt"
    path.write_text("\n".join(spoiled(records, seed, edits)))
    assert any(finding.level == "error" for finding in check_record(read(path), RULESET))
