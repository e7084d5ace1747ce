"""Configs: dumps, digests, overrides, and how a command line names, changes and refuses them."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given, settings

from image_classification import configs
from image_classification.configs import ImageRunConfig, digits_baseline, imagenet_methods, synthetic_smoke
from judging.ground.config_values import flatten
from judging.ground.errors import TimedrunError, UsageError
from language_model.gpt.configs import GptRunConfig
from timedrun.methods import REGISTRY, BlurPool, ProgressiveResizing, SequenceLengthWarmup
from timedrun.methods.training import number_formats
from timedrun.runner.benchmark import Benchmark, find
from timedrun.runner.config import RunConfig, digest, dump, load, override
from timedrun.runner.config_choice import config_of, split

RESULTS = Path(__file__).parents[3] / "results"


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("compile", "false", r"\$\.compile"),
        ("global_batch", 64.9, r"\$\.global_batch"),
        ("learning", 1, "learning"),
        ("methods", {"ema": {}}, r'methods is not a list; write "methods": \[\{"method": "ema"'),
    ],
)
def test_a_value_of_another_json_type_and_an_unknown_key_are_named(setting, value, words):
    with pytest.raises(UsageError, match=words):
        load(ImageRunConfig, {**dump(imagenet_methods()), setting: value})


@pytest.mark.results
@pytest.mark.parametrize(
    ("kind", "run"),
    [(ImageRunConfig, "digits_tuned/digits_methods"), (GptRunConfig, "gpt_shakespeare/gpt_shakespeare_modern")],
)
def test_recorded_runs_by_muon_load_with_the_momentum_that_they_had(kind, run):
    values = json.loads((RESULTS / run / "run_0" / "config.json").read_text())
    assert values["optimizer"]["kind"] == "muon" and not values["optimizer"]["nesterov"]
    config = load(kind, values)
    assert config.optimizer.nesterov
    plain = replace(config, optimizer=replace(config.optimizer, nesterov=False))
    assert load(kind, dump(plain)) == plain


def test_overrides_reach_nested_settings_and_methods_by_name():
    config = override(
        imagenet_methods(), ["--optimizer.peak-lr", "1.5", "--methods.ema.half-life", "50", "--seed", "7", "--compile"]
    )
    assert config.optimizer.peak_lr == 1.5 and config.seed == 7
    assert config.compile
    assert next(m for m in config.methods if m.name == "ema").half_life == 50
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
@settings(max_examples=30)
@given(data=st.data())
def test_a_change_of_any_setting_but_the_seed_changes_the_digest_and_equal_settings_share_it(make, data):
    config = make()
    values = dump(config)
    same = load(type(config), json.loads(json.dumps(values)))
    assert same == config and digest(same) == digest(config)
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


def test_the_imagenet_configs_have_the_numbers_of_the_mlperf_submissions():
    both = {"optimizer.kind": "decoupled_sgd", "optimizer.peak_lr": 2.048, "optimizer.momentum": 0.875}
    both |= {"optimizer.weight_decay": 5e-4, "optimizer.nesterov": False, "global_batch": 2048}
    both |= {"schedule.kind": "cosine", "schedule.epochs": 90, "schedule.warmup_epochs": 8}
    both |= {"evaluation.target": 0.759, "data.eval_size": 224}
    baseline, methods = configs.imagenet_baseline(), imagenet_methods()
    own = {"data.train_size": 224, "data.eval_resize": 256, "evaluation.every": 4, "loss": "cross_entropy"}
    assert flatten(dump(baseline)).items() >= (both | own).items()
    own = {"data.train_size": 176, "data.eval_resize": 232, "evaluation.every": 3, "loss": "binary_cross_entropy"}
    assert flatten(dump(methods)).items() >= (both | own).items()
    assert (baseline.schedule.epochs_scaled, methods.schedule.epochs_scaled) == (90, 28)
    assert methods.schedule.warmup_epochs_scaled == 8  # the published runs did not scale the warm-up
    names = " ".join(method.name for method in methods.methods)
    assert names == "log_bias blurpool channels_last label_smoothing progressive_resizing ema"


BENCHMARK = find("image_classification")
METHODS = BENCHMARK.config("methods")


def names_of(config: RunConfig) -> list[str]:
    return [method.name for method in config.methods]


def test_methods_left_out_and_added_are_read_back_at_their_places():
    changes = "-channels_last-label_smoothing+sequence_length_warmup(steps=1000,truncate=True)+ema(half_life=1e+20)"
    changes += "+progressive_resizing(start=6.25e-02,where=loader)+blurpool(blur_first=false,min_channels=3)"
    config = config_of(BENCHMARK, f"methods{changes}")
    changed = replace(next(method for method in METHODS.methods if method.name == "ema"), half_life=1e20)
    added = (SequenceLengthWarmup(steps=1000, truncate=True), ProgressiveResizing(start=0.0625, where="loader"))
    expected = {method.name: method for method in (*added, changed, BlurPool(blur_first=False, min_channels=3))}
    assert {method.name: method for method in config.methods} == expected
    assert names_of(config) == [name for name in REGISTRY if name in expected]  # that of every shipped config
    assert replace(config, methods=(), name="") == replace(METHODS, methods=(), name="")


@pytest.mark.parametrize("times", [0.6, 41.3])
def test_a_named_config_for_cpus_is_in_fp32_where_bf16_is_emulated(monkeypatch, capsys, tmp_path, times):
    monkeypatch.setattr(number_formats, "slowdown", lambda precision: times)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    fineweb, emulated = find("fineweb"), times > 1
    shipped = fineweb.config("fineweb_small_methods")
    chosen = config_of(fineweb, "small_methods")
    assert (chosen == shipped) is not emulated and chosen.precision == ("fp32" if emulated else "bf16")
    assert ("fineweb_small_methods in fp32" in capsys.readouterr().err) == emulated
    assert config_of(fineweb, "small_methods", overrides=["--precision", "bf16"]) == shipped
    assert config_of(fineweb, "methods") == fineweb.config("fineweb_methods")  # for a GPU
    (tmp_path / "recorded.json").write_text(json.dumps(dump(shipped)))
    assert config_of(fineweb, str(tmp_path / "recorded.json")) == shipped  # as it ran


def test_the_shipped_configs_stack_methods_in_the_order_of_the_registry():
    for benchmark in (BENCHMARK, find("gpt")):
        for name in benchmark.config_names:
            stacked = names_of(benchmark.config(name))
            assert stacked == [method for method in REGISTRY if method in stacked], name


def test_the_longest_config_name_wins_over_a_change(monkeypatch):
    known = dict.fromkeys(["digits_foo", "digits_foo-ema", "foo-ema+blurpool", "digits_foo-ema-1.5"], "")
    monkeypatch.setattr(Benchmark, "config_names", property(lambda benchmark: known))
    for text, stem, signs in (
        ("foo", "foo", ""),
        ("foo-ema", "foo-ema", ""),
        ("digits_foo-ema", "digits_foo-ema", ""),
        ("foo-ema+blurpool", "foo-ema+blurpool", ""),
        ("foo-ema-blurpool", "foo-ema", "-"),
        ("foo-ema-1.5+ema(half_life=1.5)-blurpool", "foo-ema-1.5", "+-"),
        ("foo-blurpool-ema", "foo", "--"),
    ):
        found, changes = split(BENCHMARK, text)
        assert (found, "".join(sign for sign, _, _ in changes)) == (stem, signs), text


def test_equal_settings_have_equal_names_and_only_changed_ones_have_a_digest(tmp_path):
    def name(text: str, *overrides: str) -> str:
        return config_of(BENCHMARK, text, None, overrides).name

    assert name("methods") == name("methods", "--seed", "7") == "digits_methods"
    assert name("methods-ema+ema(half_life=6,update_interval=1)") == "digits_methods"
    assert name("methods", "--submission.organization", "Lab", "--submission.division", "closed") == "digits_methods"
    changed = config_of(BENCHMARK, "digits_methods-blurpool")
    assert name("methods-blurpool", "--submission.organization", "Lab") == changed.name
    assert name("methods", "--clear-cache") != "digits_methods"
    assert changed.name.startswith("digits_methods-") and len(changed.name) == len("digits_methods-") + 8
    assert name("methods-ema+ema-blurpool", "--methods.ema.half-life", "6", "--methods.ema.update-interval", "1") == (
        changed.name
    )
    assert name("methods", "--global-batch", "32") not in (changed.name, "digits_methods")
    (tmp_path / "my.json").write_text(json.dumps(dump(changed)))
    assert config_of(BENCHMARK, str(tmp_path / "my.json")) == changed
    assert name(f"{tmp_path}/my.json+label_smoothing(smoothing=0.5)", "--seed", "3") == (
        name("methods-blurpool+label_smoothing(smoothing=0.5)")
    )
    own = config_of(BENCHMARK, "methods-blurpool", name="no_blur")
    assert own.name == "no_blur" and replace(own, name=changed.name) == changed
    with pytest.raises(UsageError, match="cannot name a folder"):
        config_of(BENCHMARK, "methods", name="a/b")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("methds-blurpool", "no config 'methds'. Did you mean digits_methods"),
        ("methods+emma", "no method 'emma'. Did you mean ema? Methods: log_bias, "),
        ("methods-emma", "digits_methods has no method 'emma'. Did you mean ema? It has: blurpool"),
        ("methods-blurpool-blurpool", "has no method 'blurpool'"),
        ("methods+ema", "has the method ema already; give fields to change: half_life=100.0, update_interval=20"),
        ("methods+ema(half_live=3)", "no field 'half_live'. Did you mean half_life? Fields: half_life=100.0"),
        ("methods+ema(half_life='8')", "'8' is not of type float @ $.half_life"),
        ("methods+ema(update_interval=1.5)", "1.5 is not of type int @ $.update_interval"),
        ("methods+ema(half_life=-1)", "ema.half_life must be above 0 steps, not -1.0"),
        ("methods+sequence_length_warmup", "needs steps: give +sequence_length_warmup(steps=...)"),
        ("methods+progressive_resizing(where=moon)", "not one of batch, loader @ $.where"),
        *((f"methods{text}", "cannot read the changes") for text in ("+ema(8)", "-ema(half_life=8)", "+", "--ema")),
        *((f"methods{text}", "cannot read the changes") for text in ("+ema(", "+ema*2", "+ema(**{})", "+ema()()")),
        ("methods+ema(half_life=__import__('os'))", "cannot read the changes"),
        ("none/such.json+ema", "none/such.json: cannot be read"),
    ],
)
def test_what_does_not_exist_or_fit_is_named_with_what_does(text, words):
    with pytest.raises(TimedrunError) as refused:
        config_of(BENCHMARK, text)
    assert words in str(refused.value)


def test_a_fault_of_a_method_in_a_file_is_named_with_its_place(tmp_path):
    values = dump(METHODS)
    values["methods"][3]["half_life"] = "x"
    values["methods"].append({"method": "quantum"})
    (tmp_path / "my.json").write_text(json.dumps(values))
    with pytest.raises(UsageError) as refused:
        config_of(BENCHMARK, str(tmp_path / "my.json"))
    assert "'x' is not of type float @ $.methods[3].half_life" in str(refused.value)
    assert "no method 'quantum'" in str(refused.value) and "unknown error" not in str(refused.value)


def test_help_after_a_config_prints_the_options_of_its_settings(printed):
    shown = printed("show", "image_classification", "baseline+ema", "--help")
    assert "--methods.ema.half-life" in shown and "timedrun show image_classification baseline+ema" in shown
    for verb in ("auto", "profile"):
        shown = printed(verb, "image_classification", "baseline", "--help")
        assert f"usage: timedrun {verb} image_classification baseline" in shown
        assert f"`timedrun {verb} --help` lists the other options" in " ".join(shown.replace("│", "").split())
    assert "timedrun run image_classification methods-blurpool --runs 5" in printed("run", "--help")


def test_show_names_the_data_it_chose_and_the_others_of_this_name(printed, told, refused):
    said = printed("show", "image_classification", "methods")
    assert "data digits, the default; other configs of this name: --data cifar10 or imagenet" in said
    diff = ["show", "image_classification", "--diff", "baseline"]
    assert {row["setting"].rpartition(".")[0] for row in told(*diff, "baseline+ema")} == {"methods.ema"}
    assert "global_batch" not in [row["setting"] for row in told(*diff, "methods", "--global-batch", 32)]
    refused(*diff, "methods", "--global-batch", 32, "--bogus")


def test_a_later_setting_at_its_default_leaves_the_digests_of_earlier_configs_as_they_were():
    config = digits_baseline()
    assert "split" not in dump(config)["data"] and load(type(config), dump(config)) == config
    tuning = config.for_tuning()
    assert dump(tuning)["data"]["split"] == "tuning" and load(type(config), dump(tuning)) == tuning
    assert digest(tuning) != digest(replace(tuning, data=config.data))
