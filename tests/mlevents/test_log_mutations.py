"""Every mutation of a good log gets the right strict verdict at the right line, beside MLCommons' own verdict."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlevents import mlcommons
from mlevents.checks.log_check import check_record
from mlevents.record import read
from tests.mlevents.log_mutations import (
    ACCURACY,
    LAST,
    MUTATIONS,
    edit,
    good_log,
    key_of,
    line_of,
    put,
    shift,
)

RULESET = "2.0.0"


@pytest.fixture(scope="module")
def mutated(tmp_path_factory):
    """Per mutation its text, path and MLCommons' verdict, from one child process."""
    folder = tmp_path_factory.mktemp("mutated")
    texts = {mutation.name: mutation.change(good_log()) for mutation in MUTATIONS} | {"unchanged": good_log()}
    paths = {}
    for number, (name, text) in enumerate(texts.items()):
        paths[name] = folder / f"result_{number}.txt"
        paths[name].write_bytes(text.encode())
    verdicts = dict(zip(paths, mlcommons.check_logs(list(paths.values()), RULESET), strict=True))
    return texts, paths, verdicts


def said(verdict: mlcommons.OfficialVerdict) -> str:
    return "breaks off" if any("was aborted" in message for message in verdict.messages) else verdict.verdict


def test_the_base_passes_both(mutated):
    _, paths, verdicts = mutated
    findings = check_record(read(paths["unchanged"]), RULESET)
    assert [str(finding) for finding in findings if finding.level == "error"] == []
    assert said(verdicts["unchanged"]) == "pass"


def test_a_mutation_gets_both_verdicts_and_its_line(mutated):
    texts, paths, verdicts = mutated
    wrong = []
    for mutation in MUTATIONS:
        text, verdict = texts[mutation.name], verdicts[mutation.name]
        assert text != texts["unchanged"], mutation.name
        findings = check_record(read(paths[mutation.name]), RULESET)
        errors = [str(finding) for finding in findings if finding.level == "error"]
        if ("fail" if errors else "pass") != mutation.strict:
            wrong.append((mutation.name, "strict", errors))
        line = None if mutation.at is None else line_of(text, mutation.at)
        if mutation.rule and (mutation.rule, mutation.level, line) not in [(f.rule, f.level, f.line) for f in findings]:
            wrong.append((mutation.name, "place", [str(finding) for finding in findings]))
        if said(verdict) != mutation.official:
            wrong.append((mutation.name, "official", verdict.messages))
    assert not wrong


FATAL = {
    "target missed": put(ACCURACY, 0.7, LAST),
    "aborted": edit("run_stop", lambda record: record["metadata"].update(status="aborted")),
    "run_stop in the past": shift("run_stop", -1e10),
}


def spoiled(text: str, seed: int, edits: int) -> list[str]:
    """Random deletions, repetitions, swaps and other values on the lines of `text` that no fatal flaw is on."""
    chance, lines = random.Random(seed), text.split("\n")
    kept = {place for place, line in enumerate(lines) if key_of(line) in ("run_stop", "run_start", ACCURACY)}
    kept |= {place for place, line in enumerate(lines) if key_of(line) == "submission_benchmark"}
    free: list[str | None] = [None if place in kept else line for place, line in enumerate(lines)]
    for _ in range(edits):
        place = chance.choice([place for place in range(len(lines)) if place not in kept])
        line = free[place] or ""
        choice = chance.randrange(4)
        if choice == 0:
            free[place] = ""
        elif choice == 1:
            free[place] = f"{line}\n{line}"
        elif choice == 2:
            other = chance.choice([other for other in range(len(lines)) if other not in kept])
            free[place], free[other] = free[other], line
        else:
            value = chance.choice(["null", "-1", "1e400", '"resnet"', "[]", "{}", "true", "0.99"])
            free[place] = line.replace('"value": null', f'"value": {value}')
    return [lines[place] if line is None else line for place, line in enumerate(free)]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(flaw=st.sampled_from(sorted(FATAL)), seed=st.integers(0, 2**32), edits=st.integers(0, 12))
def test_what_failed_never_passes_whatever_else_is_edited(tmp_path_factory, flaw, seed, edits):
    path = tmp_path_factory.mktemp("spoiled") / "result_0.txt"
    path.write_text("\n".join(spoiled(FATAL[flaw](good_log()), seed, edits)))
    assert any(finding.level == "error" for finding in check_record(read(path), RULESET))
