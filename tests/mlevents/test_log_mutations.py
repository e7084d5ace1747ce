"""Every mutation of a good log gets the right strict verdict at the right line, beside MLCommons' own verdict."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlevents import mlcommons
from mlevents.checks.log_check import check_record
from mlevents.record import read
from mlevents.summary import summarize
from tests.mlevents.log_mutations import (
    ACCURACY,
    LAST,
    MUTATIONS,
    Mutation,
    edit,
    good_log,
    key_of,
    line_of,
    put,
    shift,
)

RULESET = "2.0.0"
SOURCES = ("synthetic", "published")
# MosaicML counts epochs from 0 by itself, and logs no point of contact.
NO_CHANGE = {"published": {"epochs from 0", "no submission_poc_name", "no submission_poc_email"}}


@pytest.fixture(scope="module", params=SOURCES)
def mutated(request, published_sample, tmp_path_factory):
    """The name of the base log, and per mutation its text, path and MLCommons' verdict, from one child process."""
    log = published_sample["v2.0"] / "results/8xA100_80GB-methods/resnet/result_0.txt"
    base = good_log() if request.param == "synthetic" else log.read_text()
    folder = tmp_path_factory.mktemp(request.param)
    texts = {mutation.name: mutation.change(base) for mutation in MUTATIONS} | {"unchanged": base}
    paths = {}
    for number, (name, text) in enumerate(texts.items()):
        paths[name] = folder / f"result_{number}.txt"
        paths[name].write_bytes(text.encode())
    verdicts = dict(zip(paths, mlcommons.check_logs(list(paths.values()), RULESET), strict=True))
    return request.param, texts, paths, verdicts


def said(verdict: mlcommons.OfficialVerdict) -> str:
    return "breaks off" if any("was aborted" in message for message in verdict.messages) else verdict.verdict


def test_the_base_passes_both(mutated):
    _, _, paths, verdicts = mutated
    findings = check_record(read(paths["unchanged"]), RULESET)
    assert [str(finding) for finding in findings if finding.level == "error"] == []
    assert said(verdicts["unchanged"]) == "pass"


def test_a_mutation_gets_both_verdicts_and_its_line(mutated):
    source, texts, paths, verdicts = mutated
    wrong = []
    for mutation in MUTATIONS:
        text, verdict = texts[mutation.name], verdicts[mutation.name]
        assert (text != texts["unchanged"]) or mutation.name in NO_CHANGE.get(source, ()), mutation.name
        findings = check_record(read(paths[mutation.name]), RULESET)
        errors = [str(finding) for finding in findings if finding.level == "error"]
        if ("fail" if errors else "pass") != mutation.strict:
            wrong.append((mutation.name, "strict", errors))
        line = None if mutation.at is None else line_of(text, mutation.at) - shifted(mutation)
        if mutation.rule and (mutation.rule, mutation.level, line) not in [(f.rule, f.level, f.line) for f in findings]:
            wrong.append((mutation.name, "place", [str(finding) for finding in findings]))
        if said(verdict) != mutation.official:
            wrong.append((mutation.name, "official", verdict.messages))
    assert not wrong


def shifted(mutation: Mutation) -> int:
    """Lines between the record that can still be found and the broken one before it."""
    return {"text after a record": BEFORE_TRAIN_SAMPLES, "half a record": BEFORE_TRAIN_SAMPLES}.get(mutation.name, 0)


BEFORE_TRAIN_SAMPLES = 3  # seed, global_batch_size, gradient_accumulation_steps stand before train_samples in both logs


LINES = good_log().split("\n")
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


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    changes=st.lists(st.tuples(st.integers(0, len(good_log()) - 1), st.binary(max_size=3)), max_size=12),
    cut=st.integers(0, len(good_log())),
)
def test_no_edit_of_bytes_makes_a_check_fail(tmp_path_factory, changes, cut):
    data = bytearray(good_log().encode())
    for place, new in changes:
        data[place : place + 1] = new
    path = tmp_path_factory.mktemp("bytes") / "result_0.txt"
    path.write_bytes(bytes(data[: max(cut, 1)]))
    record = read(path)
    check_record(record, RULESET)
    assert summarize(record).events == len(record.events)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(order=st.permutations(range(len(LINES))), keep=st.integers(0, len(LINES)))
def test_no_order_of_lines_makes_a_check_fail(tmp_path_factory, order, keep):
    path = tmp_path_factory.mktemp("order") / "result_0.txt"
    path.write_text("\n".join(LINES[place] for place in order[:keep]))
    findings = check_record(read(path), RULESET)
    assert keep == len(LINES) or any(finding.level == "error" for finding in findings) or order[:keep] == sorted(order)
