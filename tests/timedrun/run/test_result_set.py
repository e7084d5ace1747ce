"""The runs of a results folder are one set: equal configs, a seed each."""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from judging.ground.config_values import digest_of
from mlevents import keys
from mlevents.rounds.own_rules import as_recorded, benchmark_rules
from mlevents.runlog import RunLog
from timedrun.config import digest, dump
from timedrun.methods import EMA
from timedrun.run.result_set import next_seed, other_config, other_rules, repeated_seed


def keep(folder: Path, number: int, text: str) -> None:
    (folder / f"run_{number}").mkdir(parents=True)
    (folder / f"run_{number}" / "config.json").write_text(text)


def test_the_next_seed_is_the_configs_own_or_the_lowest_that_no_run_has(tmp_path, toy_config):
    assert next_seed(toy_config(), tmp_path / "none") == 1
    assert next_seed(toy_config(seed=7), tmp_path) == 7
    for number, seed in enumerate((1, 2, 4)):
        keep(tmp_path, number, json.dumps(dump(toy_config(seed=seed))))
    keep(tmp_path, 8, "{")
    keep(tmp_path, 9, "[]")
    assert next_seed(toy_config(), tmp_path) == 3
    assert next_seed(toy_config(seed=4), tmp_path) == 3
    assert next_seed(toy_config(seed=5), tmp_path) == 5


def test_a_seed_that_a_run_has_is_refused_with_the_next_free_one(tmp_path, toy_config):
    keep(tmp_path, 0, json.dumps(dump(toy_config(seed=1))))
    assert repeated_seed(toy_config(seed=2), tmp_path) == ""
    words = repeated_seed(toy_config(seed=1), tmp_path)
    assert "run_0 already has seed 1" in words and "next free one (--seed 2)" in words


def test_another_config_is_named_with_both_digests_and_the_settings(tmp_path, toy_config):
    config = toy_config()
    assert digest_of(json.loads(json.dumps(dump(config)))) == digest(config)
    keep(tmp_path, 3, json.dumps(dump(replace(config, seed=9))))
    assert other_config(config, tmp_path) == "" == other_config(config, tmp_path / "none")
    other = replace(config, global_batch=8, methods=(EMA(),))
    words = other_config(other, tmp_path)
    for part in ("run_3", digest(config)[:16], digest(other)[:16], "global_batch 4 there and 8 here", "methods.ema"):
        assert part in words
    assert "differ in name or notes" in other_config(replace(config, name="toy_mine"), tmp_path)


def test_a_folder_of_runs_by_other_rules_is_named_with_the_difference(tmp_path):
    rules = benchmark_rules("wine", dataset="wine", metric="accuracy", target=0.9)
    assert other_rules(rules, tmp_path) == ""
    with closing(RunLog(tmp_path / "result_0.txt", durable=False)) as log:
        log.event(keys.SUBMISSION_BENCHMARK, "wine")
        log.event(keys.BENCHMARK_RULES, as_recorded(rules))
    assert other_rules(rules, tmp_path) == "" == other_rules(None, tmp_path)
    assert "they differ in target 0.9 there and 0.8 here" in other_rules(replace(rules, target=0.8), tmp_path)
