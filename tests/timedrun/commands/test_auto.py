"""`timedrun auto`: the config it writes, its evidence, and what it refuses."""

from collections.abc import Mapping

import pytest

from judging.ground.config_values import flatten
from timedrun.evidence.analysis import selection
from timedrun.evidence.analysis.profiled_run import StepPlan
from timedrun.evidence.analysis.step_times import UNTRIED, StepTimes
from timedrun.evidence.preflight import checks
from timedrun.methods.recipes import RECIPES
from timedrun.methods.training import number_formats
from timedrun.runner.benchmark import find
from timedrun.runner.config import RunConfig, plain
from timedrun.runner.config_choice import read_config


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of timedrun's BERT take half the time, unpadding and the last layer's subset save a fifth each, bf16 half;
    compiling is slower; micro-batches change the loss."""

    def measured(benchmark, configs, plan, **_):
        found = {}
        for name, config in configs.items():
            on = flatten(plain(config))
            seconds = 0.1 * (0.5 if on.get("implementation") == "timedrun" else 1.0)
            for setting in ("speed.unpadding", "speed.last_layer_subset"):
                seconds *= 0.8 if on.get(setting) else 1.0
            seconds *= (1.5 if config.compile else 1.0) * (0.5 if config.precision == "bf16" else 1.0)
            loss = 2.0 * (1.001 if config.precision == "bf16" else 1.1 if config.micro_batch else 1.0)
            noise = 500 if on.get("speed.unpadding") else 1000  # so that its ratios have a spread
            chunks = tuple(seconds * (1 + chunk / noise) for chunk in range(6))
            found[name] = StepTimes((0.5,), (chunks,), losses=(loss,))
        return found, {}

    monkeypatch.setattr(selection, "step_times", measured)


def test_the_config_written_has_what_pays_and_evidence(tmp_path, printed, refused):
    out = tmp_path / "fast.json"
    words = ["auto", "language_model", "baseline", "--data", "topics", "--out", out]
    shown = printed(*words, "--try", "micro-batch 4", "nonsense 3")
    config = read_config(find("language_model"), out)
    assert config.name == "topics_baseline_auto"
    on = {name for name, value in flatten(plain(config)).items() if name.startswith("speed") and value is True}
    assert flatten(plain(config))["implementation"] == "timedrun" and not config.compile
    assert on == {"speed.unpadding", "speed.last_layer_subset"}
    assert "speed.unpadding true: 1.247x [1.244, 1.249], kept" in config.notes
    assert "compile true: 0.6667x" in config.notes
    assert "it does not go with implementation timedrun;" in config.notes  # without the error of a setting
    assert "is no setting of topics_baseline and no method" in config.notes
    assert "3.117x [3.111, 3.123]" in shown and "it changes the loss: 2.2 in place of 2" in shown
    assert "exists; nothing was measured" in refused(*words)


@pytest.mark.parametrize(
    ("words", "late", "minutes", "decided"),
    [
        (["language_model", "baseline", "--data", "topics"], "given", "10", "json was not written"),
        (["language_model", "baseline", "--data", "topics"], "compile true", "10", "3.117x"),
        (["image_classification", "--try", "micro-batch 4"], "compile true", "10", "no change that was measured pays"),
    ],
)
def test_a_search_that_runs_out_of_time_names_what_it_did_not_measure(
    words, late, minutes, decided, tmp_path, answered, monkeypatch
):
    measured = selection.step_times

    def slow(benchmark: str, configs: Mapping[str, RunConfig], plan: StepPlan, **_: object) -> object:
        found, _ = measured(benchmark, configs, plan)
        done = {name: times for name, times in found.items() if name != late}
        return done, dict.fromkeys(found.keys() - done.keys(), UNTRIED)

    monkeypatch.setattr(selection, "step_times", slow)
    out = tmp_path / "fast.json"
    shown, error = answered("auto", *words, "--minutes", minutes, "--out", out, code=4)
    assert "compile true" in error and "give more --minutes" in error and decided in shown + error
    assert out.exists() == (decided not in error)


@pytest.mark.parametrize(
    ("out", "words"),
    [("nowhere/x.json", "the folder nowhere does not exist"), (".", "is a folder"), ("my.conf", "name ends in .json")],
)
def test_a_file_that_cannot_be_written_or_run_is_refused_before_the_search(out, words, tmp_path, refused, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(selection, "step_times", None)
    error = refused("auto", "image_classification", "--out", out)
    assert words in error and "nothing was measured" in error


def test_16_bits_are_tried_where_they_are_named_and_the_cpu_has_them(tmp_path, told, monkeypatch):
    words = ["auto", "image_classification", "--try", "precision bf16", "--out"]
    monkeypatch.setattr(number_formats, "emulated", lambda precision, device: precision == "bf16")
    values = told(*words, tmp_path / "a.json")
    (tried,) = (change for change in values["changes"] if change["change"] == "precision bf16")
    assert values["kept"] == [] and "or --emulation allow" in tried["reason"]
    monkeypatch.setattr(number_formats, "emulated", lambda precision, device: False)
    values = told(*words, tmp_path / "b.json")
    assert values["kept"] == ["precision bf16"] and values["loss_difference"] == pytest.approx(1e-3)
    assert values["speed_up"]["ratio"] == pytest.approx(2) and values["given"] == "digits_baseline"


def test_level_2_starts_from_the_recipe_for_the_budget(tmp_path, printed, refused, monkeypatch):
    monkeypatch.setattr(checks, "data_problems", lambda *_: [])  # without ImageNet
    words = ["auto", "image_classification", "--data", "imagenet", "-O2", "--precision", "bf16", "--emulation", "allow"]
    out = tmp_path / "medium.json"
    printed(*words, "--budget", 100, "--out", out)
    config = read_config(find("image_classification"), out)
    assert config.name == "imagenet_medium_auto" and config.methods == RECIPES["medium"].methods
    assert flatten(plain(config))["schedule.scale"] == pytest.approx(100 / RECIPES["medium"].schedule.epochs)
    own = ["--global-batch", "512", "--optimizer.peak-lr", "0.12", "--loss", "cross_entropy", "--schedule.scale", "0.5"]
    printed(*words, *own, "--evaluation.target", 0.7, "--out", out.with_name("own.json"))
    own = flatten(plain(read_config(find("image_classification"), out.with_name("own.json"))))
    assert [own["global_batch"], own["optimizer.peak_lr"], own["evaluation.target"]] == [512, 0.12, 0.7]
    assert own["recipe"] == "mild" and own["loss"] == "cross_entropy"
    assert own["schedule.scale"] == pytest.approx(45 / RECIPES["mild"].schedule.epochs)
    error = refused("auto", "image_classification", "-O2", "--out", tmp_path / "none.json")
    assert "no published recipe for digits" in error and "cifar10: cifar10_methods, 3 to 6 epochs; topics: " in error
    refused("auto", "image_classification", "--budget", 3)


@pytest.mark.parametrize(
    ("words", "budget", "name", "stretched"),
    [
        (("image_classification", "cifar10_resnet8_baseline"), 6, "cifar10_methods", ("schedule.scale", 1.2)),
        (("language_model.gpt", "shakespeare_baseline"), 0, "shakespeare_modern", ("schedule.steps", 400)),
        (("language_model.fineweb", "fineweb_small_baseline"), 375, "fineweb_small_methods", ("schedule.steps", 375)),
    ],
)
def test_level_2_starts_from_our_own_sweeps(words, budget, name, stretched, tmp_path, printed, refused, monkeypatch):
    monkeypatch.setattr(checks, "data_problems", lambda *_: [])
    command, out = ["auto", *words, "-O2", "--emulation", "allow", "--out"], tmp_path / "recipe.json"
    printed(*command, out, *["--budget", budget] * bool(budget))
    made = read_config(find(words[0]), out)
    assert made.name.startswith(name) and made.name.endswith("_auto")
    assert flatten(plain(made))[stretched[0]] == pytest.approx(stretched[1]) and "(results/" in made.notes
    assert flatten(plain(made))["evaluation.every"] == flatten(plain(find(words[0]).config(name)))["evaluation.every"]
    assert "no recipe was measured at 7000" in refused(*command, tmp_path / "none.json", "--budget", 7000)
