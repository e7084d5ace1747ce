"""Configs: overrides by name, a dump that reads back, a digest that every setting changes, the difference of two."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given

from image_classification.configs import ImageRunConfig, imagenet_baseline, imagenet_methods, synthetic_smoke
from judging.ground.errors import UsageError
from language_model.gpt.configs import GptRunConfig
from timedrun.config import RunConfig, difference, digest, dump, load, override

RESULTS = Path(__file__).parents[2] / "results"


def test_a_dump_reads_back_as_the_same_config() -> None:
    for config in (imagenet_baseline(), imagenet_methods()):
        assert load(ImageRunConfig, dump(config)) == config


@pytest.mark.parametrize(
    ("setting", "value"),
    [("compile", "false"), ("global_batch", 64.9), ("seed", True), ("notes", 3), ("budget_minutes", "1")],
)
def test_a_value_of_another_json_type_and_an_unknown_key_are_named(setting: str, value: object) -> None:
    with pytest.raises(UsageError, match=rf"\$\.{setting}"):
        load(ImageRunConfig, {**dump(imagenet_methods()), setting: value})
    with pytest.raises(UsageError, match="learning"):
        load(ImageRunConfig, {**dump(imagenet_methods()), "learning": value})


@pytest.mark.parametrize(
    ("kind", "run"),
    [(ImageRunConfig, "digits_tuned/digits_methods"), (GptRunConfig, "gpt_shakespeare/gpt_shakespeare_modern")],
)
def test_recorded_runs_by_muon_load_with_the_momentum_that_they_had(kind: type[RunConfig], run: str) -> None:
    values = json.loads((RESULTS / run / "run_0" / "config.json").read_text())
    assert values["optimizer"]["kind"] == "muon" and not values["optimizer"]["nesterov"]
    config = load(kind, values)
    assert config.optimizer.nesterov
    plain = replace(config, optimizer=replace(config.optimizer, nesterov=False))
    assert load(kind, dump(plain)) == plain


def test_overrides_reach_nested_settings_and_methods_by_name() -> None:
    config = override(
        imagenet_methods(), ["--optimizer.peak-lr", "1.5", "--methods.ema.half-life", "50", "--seed", "7", "--compile"]
    )
    assert config.optimizer.peak_lr == 1.5
    assert config.seed == 7
    assert config.compile
    assert next(m for m in config.methods if m.name == "ema").half_life == 50  # type: ignore[attr-defined]
    assert [m.name for m in config.methods] == [m.name for m in imagenet_methods().methods]
    config = override(config, ["--compile", "false", "--optimizer.nesterov", "true", "--notes", "true"])
    assert (config.compile, config.optimizer.nesterov, config.notes) == (False, True, "true")


def _leaves(value: object, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where in a config's dump numbers, switches and free texts stand."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(item, (*place, key))
    elif isinstance(value, bool | int | float) or place in {("name",), ("notes",), ("dataset",), ("benchmark",)}:
        yield place


@pytest.mark.parametrize("make", [imagenet_methods, synthetic_smoke], ids=["imagenet_methods", "synthetic_smoke"])
@given(data=st.data())
def test_a_change_of_any_setting_but_the_seed_changes_the_digest_and_equal_settings_share_it(
    make: Callable[[], RunConfig], data: st.DataObject
) -> None:
    config = make()
    values = dump(config)
    assert digest(load(type(config), json.loads(json.dumps(values)))) == digest(config)
    place = data.draw(st.sampled_from(list(_leaves(values))))
    holder: Any = values
    for key in place[:-1]:
        holder = holder[key]
    old = holder[place[-1]]
    kinds = {bool: st.booleans(), int: st.integers(-(2**40), 2**40), float: st.floats(-1e9, 1e9), str: st.text()}
    holder[place[-1]] = data.draw(kinds[type(old)].filter(lambda new: new != old))
    try:
        changed = load(type(config), values)
    except (UsageError, ValueError):
        assume(False)
    assert (digest(changed) == digest(config)) == (place == ("seed",))


def test_the_difference_of_two_configs_names_each_setting_once() -> None:
    rows = {key: (a, b) for key, a, b in difference(imagenet_baseline(), imagenet_methods())}
    assert rows["schedule.scale"] == (1.0, 0.32)
    assert rows["methods.ema.half_life"] == ("-", 100)
    assert rows["data.train_size"] == (224, 176)
    assert "optimizer.peak_lr" not in rows


def test_the_imagenet_configs_have_the_numbers_of_the_mlperf_submissions() -> None:
    baseline, methods = imagenet_baseline(), imagenet_methods()
    for config in (baseline, methods):
        optimizer, schedule = config.optimizer, config.schedule
        assert (optimizer.kind, optimizer.peak_lr, optimizer.momentum) == ("decoupled_sgd", 2.048, 0.875)
        assert (optimizer.weight_decay, optimizer.nesterov, config.global_batch) == (5e-4, False, 2048)
        assert (schedule.kind, schedule.epochs, schedule.warmup_epochs) == ("cosine", 90, 8)
        assert (config.evaluation.target, config.data.eval_size) == (0.759, 224)
    assert (baseline.schedule.epochs_scaled, methods.schedule.epochs_scaled) == (90, 28)
    assert (baseline.data.train_size, baseline.data.eval_resize) == (224, 256)
    assert (methods.data.train_size, methods.data.eval_resize) == (176, 232)
    assert (baseline.evaluation.every, methods.evaluation.every) == (4, 3)
    assert (baseline.loss, methods.loss) == ("cross_entropy", "binary_cross_entropy")
    assert methods.schedule.warmup_epochs_scaled == 8  # the published runs did not scale the warm-up
    names = " ".join(method.name for method in methods.methods)
    assert names == "log_bias blurpool channels_last label_smoothing progressive_resizing ema"
