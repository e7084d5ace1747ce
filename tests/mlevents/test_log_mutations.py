"""Every mutation of a good log gets the right strict verdict at the right line, beside MLCommons' own verdict."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlevents import mlcommons
from mlevents.checks.log_check import check_record
from mlevents.record import read
from tests.mlevents.conftest import Records, lines_of
from tests.mlevents.log_mutations import ACCURACY, MUTATIONS, good_log, note, put, shift, text_of

RULESET = "2.0.0"


@pytest.fixture(scope="module")
def mutated(tmp_path_factory):
    """Per mutation its path, the line to name and MLCommons' verdict, from one child process."""
    folder = tmp_path_factory.mktemp("mutated")
    changed = {mutation.name: mutation.applied() for mutation in MUTATIONS} | {"unchanged": (text_of(good_log()), None)}
    paths = [folder / f"result_{number}.txt" for number in range(len(changed))]
    for path, (text, _) in zip(paths, changed.values(), strict=True):
        path.write_text(text, encoding="utf-8")
    verdicts = mlcommons.check_logs(paths, RULESET)
    lines = [line for _, line in changed.values()]
    return dict(zip(changed, zip(paths, lines, verdicts, strict=True), strict=True))


def said(verdict: mlcommons.OfficialVerdict) -> str:
    return "breaks off" if any("was aborted" in message for message in verdict.messages) else verdict.verdict


def test_the_base_passes_both(mutated):
    path, _, verdict = mutated["unchanged"]
    assert [str(finding) for finding in check_record(read(path), RULESET) if finding.level == "error"] == []
    assert said(verdict) == "pass"


def test_a_mutation_gets_both_verdicts_and_its_line(mutated):
    wrong = []
    for mutation in MUTATIONS:
        path, line, verdict = mutated[mutation.name]
        assert path.read_bytes() != mutated["unchanged"][0].read_bytes(), mutation.name
        findings = check_record(read(path), RULESET)
        errors = [str(finding) for finding in findings if finding.level == "error"]
        if ("fail" if errors else "pass") != mutation.strict:
            wrong.append((mutation.name, "strict", errors))
        if mutation.rule and (mutation.rule, mutation.level, line) not in [(f.rule, f.level, f.line) for f in findings]:
            wrong.append((mutation.name, "place", line, [str(finding) for finding in findings]))
        if said(verdict) != mutation.official:
            wrong.append((mutation.name, "official", verdict.messages))
    assert not wrong


FATAL = {
    "target missed": put(ACCURACY, 0.7, -1),
    "aborted": note("run_stop", status="aborted"),
    "run_stop in the past": shift("run_stop", -(10**10)),
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


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(flaw=st.sampled_from(sorted(FATAL)), seed=st.integers(0, 2**32), edits=st.integers(0, 12))
def test_what_failed_never_passes_whatever_else_is_edited(tmp_path_factory, flaw, seed, edits):
    records = good_log()
    FATAL[flaw](records)
    path = tmp_path_factory.mktemp("spoiled") / "result_0.txt"
    path.write_text("\n".join(spoiled(records, seed, edits)))
    assert any(finding.level == "error" for finding in check_record(read(path), RULESET))
