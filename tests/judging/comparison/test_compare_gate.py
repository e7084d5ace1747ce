"""Differences between sets: refused, allowed or noted."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from judging.comparison.compare import compare_sets
from judging.comparison.speedup_ratio import NotComparable
from mlevents.rounds.own_rules import benchmark_rules
from tests.judging.conftest import change_json, summaries


@pytest.fixture
def two(tmp_path, make_set) -> tuple[Path, Path]:
    """Two sets on one machine, the second twice as fast."""
    first = make_set(tmp_path / "first")
    second = make_set(tmp_path / "second", times=(5.0, 5.5, 6.1, 6.5, 7.0), global_batch_size=128)
    return first, second


def test_sets_of_one_machine_are_compared_and_other_differences_noted(two):
    change_json(*two[1].glob("run_*/config.json"), precision="fp16")
    for path in two[1].glob("run_*/environment.txt"):
        path.write_text(path.read_text().replace("torch==2.13.0", "torch==2.14.0"))
    change_json(*two[1].glob("run_*/provenance.json"), commit="abc")
    ratio = compare_sets(summaries(two[0]), summaries(two[1]), paired=False)
    assert ratio.differences == () and ratio.value == pytest.approx(2, rel=0.01)
    assert ratio.ratio_of_scores == pytest.approx(12 / ((5.5 + 6.1 + 6.5) / 3))
    assert "of scores 1.99" in ratio.sentence and "differ" not in ratio.sentence
    assert ratio.quality_slow == pytest.approx(0.761) and ratio.target == 0.759
    notes = "\n".join(ratio.notes)
    assert "the software differs: torch (2.13.0 and 2.14.0)" in notes
    assert "the source differs: commit (unknown and abc)" in notes
    assert "the configs differ: precision (bf16 and fp16)" in notes
    assert "the global batch size differs: 64 and 128" in notes


def test_every_difference_is_named_and_each_kind_must_be_allowed(two):
    change_json(*two[1].glob("run_*/system.json"), accelerator_model_name="B", system_name="other", framework="X")
    change_json(*two[1].glob("run_*/provenance.json"), ranks=4, data={"sha256": "b" * 64})
    change_json(*two[0].glob("run_*/provenance.json"), data={"sha256": "a" * 64})
    sets = [summaries(folder) for folder in two]
    with pytest.raises(NotComparable) as caught:
        compare_sets(sets[0], sets[1], paired=False)
    assert {(difference.kind, difference.what) for difference in caught.value.differences} == {
        ("hardware", "accelerator_model_name"),
        ("hardware", "ranks"),
        ("data", "digest of the data"),
    }
    assert "ranks (2 and 4)" in str(caught.value) and str(caught.value).endswith("use --allow hardware data.")
    with pytest.raises(NotComparable, match="use --allow data"):
        compare_sets(sets[0], sets[1], paired=False, allow=["hardware"])
    ratio = compare_sets(sets[0], sets[1], paired=False, allow=["hardware", "data"])
    assert len(ratio.differences) == 3
    assert "They differ in hardware and data, which may explain the ratio" in ratio.sentence
    assert "ranks (2 and 4)" in ratio.sentence


def test_a_machine_that_changes_within_a_set_is_a_difference_and_what_one_side_alone_records_noted(two):
    change_json(two[0] / "run_3" / "system.json", host_processor_model_name="another")
    with pytest.raises(NotComparable, match="host_processor_model_name"):
        compare_sets(summaries(two[0]), summaries(two[1]), paired=False)
    shutil.copy(two[0] / "run_2" / "system.json", two[0] / "run_3" / "system.json")
    for path in two[1].glob("run_*"):
        shutil.rmtree(path)
    ratio = compare_sets(summaries(two[0]), summaries(two[1]), paired=False)
    assert any("the second set has no description of its hardware" in note for note in ratio.notes)


def test_targets_and_data_may_be_allowed_and_benchmarks_never(tmp_path, write_set):
    times = (10.0, 11.0, 12.0)
    imagenet = summaries(write_set(tmp_path / "a", times))
    digits = summaries(write_set(tmp_path / "b", times, dataset="digits", quality_target=0.7))
    bert = summaries(write_set(tmp_path / "c", times, benchmark="bert"))
    mixed = r"dataset \(imagenet in a/result_0.txt and digits in b/result_1.txt\); quality target "
    with pytest.raises(NotComparable, match=mixed):
        compare_sets(imagenet[:1], [imagenet[2], digits[1]], paired=False)
    ratio = compare_sets(imagenet, digits, paired=False, allow=["data", "target"])
    assert {difference.kind for difference in ratio.differences} == {"data", "target"} and ratio.target is None
    never = r"benchmark \(resnet in .* and bert in .*different benchmarks are never compared"
    with pytest.raises(NotComparable, match=never):
        compare_sets(imagenet, bert, paired=False, allow=["data", "target", "hardware", "benchmark"])


def test_the_number_of_runs_that_a_benchmark_of_ones_own_asks_for_is_no_difference(two):
    rules = [benchmark_rules("wine", dataset="wine", metric="accuracy", target=0.7, runs=runs) for runs in (3, 5)]
    slow, fast = (
        [replace(run, benchmark="wine", own_rules=own) for run in summaries(folder)]
        for folder, own in zip(two, rules, strict=True)
    )
    assert compare_sets(slow, fast, paired=False).value == pytest.approx(2, rel=0.01)


@pytest.mark.parametrize("paired", [True, False])
def test_runs_that_miss_are_left_out_of_the_ratio_and_count_in_the_verdict(tmp_path, write_run, paired):
    for number in range(5):
        start = 1.8e9 + number * 1e5
        status = "aborted" if number == 2 else "success"
        write_run(tmp_path / "a", number, minutes=10 + number, start=start)
        write_run(tmp_path / "b", number, minutes=(10 + number) / 2, start=start + 5e4, status=status)
    ratio = compare_sets(summaries(tmp_path / "a"), summaries(tmp_path / "b"), paired=paired)
    assert (ratio.runs_slow, ratio.runs_fast) == ((4, 4) if paired else (5, 4))
    assert any("b/result_2.txt was aborted; it is left out" in note for note in ratio.notes)
    assert ratio.ratio_of_scores == pytest.approx(12 / ((5.5 + 6.5 + 7) / 3))
    log = tmp_path / "b" / "result_3.txt"
    log.write_text(log.read_text().replace('"success"', '"aborted"'))
    ratio = compare_sets(summaries(tmp_path / "a"), summaries(tmp_path / "b"), paired=paired)
    where = "Where both reach the target (3 of 5 pairs)" if paired else "By the runs that reach the target"
    assert ratio.sentence.startswith(f"{where}, b is 2.") and ratio.misses == "b missed 2 of 5"
    assert ratio.verdict == f"faster {'where both reach' if paired else 'where they reach'}; misses more"
    assert ratio.ratio_of_scores is None and ratio.attempts and ratio.expected
    assert ratio.expected.value == pytest.approx(12 / (5 * 6 / 3))  # 10 min a run for 12: two of five are lost
    assert "b missed 2 of 5: faster where" in ratio.sentence and "3 of 5 reached" in ratio.sentence
    assert ratio.bounds_for("faster") == ratio.expected.bounds and not ratio.decided  # of b, which misses more
    assert ratio.bounds_for("slower") == ratio.bounds
    fewer = compare_sets(summaries(tmp_path / "b"), summaries(tmp_path / "a"), paired=paired)
    assert fewer.verdict.startswith("slower where") and fewer.verdict.endswith("; misses fewer") and not fewer.decided
    if paired:
        assert "on the same machine where both reach the target (3 of 5 pairs)" in ratio.portable_text


def test_the_command_compares_and_refuses(two, told, printed, refused):
    values = told("compare", *two)
    assert (
        values["compared"] is True and values["verified"] is False and values["low"] < values["ratio"] < values["high"]
    )
    out = printed("compare", *two)
    assert "unverified" in out and out.rstrip().endswith("Result not verified by MLCommons Association.")
    change_json(*two[1].glob("run_*/system.json"), host_memory_capacity="1 GiB")
    values = told("compare", *two, code=1)
    assert values["compared"] is False
    assert [difference["what"] for difference in values["differences"]] == ["host_memory_capacity"]
    assert "host_memory_capacity" in refused("compare", *two, code=1)
    assert "They differ in hardware" in printed("compare", *two, "--allow", "hardware")
    refused("compare", *two, "--allow", "benchmark")
    assert "holds 2 sets; pass one" in refused("compare", two[0].parent, two[1])
    assert "are the same set" in refused("compare", two[0], two[0] / ".")
    assert told("compare", *sorted(two[0].glob("result_*.txt"))[:2])["compared"] is True  # two files of one folder
    (two[0] / "empty").mkdir()
    refused("compare", two[0] / "empty", two[1])


def test_pairs_are_runs_with_equal_numbers(two):
    for number in range(5):  # one after the other: 0 and 0, 1 and 1 ...
        assert compare_sets(summaries(two[0])[: number + 1], summaries(two[1])[: number + 1], paired=True)
    (two[0] / "result_2.txt").unlink()
    (two[1] / "result_3.txt").unlink()
    with pytest.raises(NotComparable, match=r"first/result_3.txt and second/result_2.txt are not a pair"):
        compare_sets(summaries(two[0]), summaries(two[1]), paired=True)
    assert compare_sets(summaries(two[0]), summaries(two[1]), paired=False).runs_slow == 4


def test_a_run_that_failed_before_logging_its_settings_is_no_difference(tmp_path, make_set):
    digits = {"dataset": "digits", "quality_target": 0.7}
    first, second = make_set(tmp_path / "first", **digits), make_set(tmp_path / "second", **digits)
    for folder in (first, second):
        log = folder / "result_0.txt"
        log.write_text("".join(log.read_text().splitlines(keepends=True)[:2]))
        ratio = compare_sets(summaries(first), summaries(second), paired=False)
        assert ratio.differences == () and ratio.target == 0.7 and ratio.value == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("text", ["[1]", "{", "[" * 100_000], ids=["list", "broken", "deep"])
def test_an_invalid_config_is_named(text, two, refused):
    (two[0] / "run_0" / "config.json").write_text(text)
    assert "run_0/config.json: " in (said := refused("compare", *two, code=1)) and said.count("\n") == 1
