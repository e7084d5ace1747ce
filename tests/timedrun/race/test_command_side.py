"""What is read of a command's output, in the forms in which training scripts print it."""

import math

import pytest

from judging.ground.errors import UsageError
from timedrun.race.command_side import CommandSide, Reading


def side(quality: str, **settings: object) -> CommandSide:
    return CommandSide(name="a", command="train", quality=quality, target=3.28, lower=True, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("quality", "line", "readings"),
    [
        ("val_loss:([0-9.]+)", "step:125/1390 val_loss:4.1284 train_time:21ms", [Reading("quality", 4.1284)]),
        (r"step:(?P<step>\d+).* val_loss:(?P<quality>\S+)", "step:9 val_loss:1e-3", [Reading("quality", 0.001, 9)]),
        ("val_loss:(\\S+)", "val_loss:-inf", [Reading("quality", -math.inf)]),
        ("val_loss:(\\S+)", "val_loss:2.5.", [Reading("quality", 2.5)]),
        ("val_loss:(\\S+)", "val_loss:2.5%", [Reading("text", text="2.5%")]),
        ("json:eval_loss", '{"eval_loss": 2.5, "step": 40}', [Reading("quality", 2.5, 40)]),
        (r"step (?P<step>\d+)(?: val (?P<quality>[\d.]+))?", "step 100", []),
        (r"step (?P<step>\d+) (?P<quality>\S+)", f"step {10**19} 2.5", [Reading("quality", 2.5)]),
        ("json:eval_loss", f'{{"eval_loss": 2.5, "step": {10**19}}}', [Reading("quality", 2.5)]),
        ("json:eval_loss", '{"loss": 2.5}', []),
        ("json:eval_loss", '{"eval_loss": "2.5"', []),
        ("mllog", ':::MLLOG {"key": "eval_accuracy", "value": 0.7}', [Reading("quality", 0.7)]),
        ("mllog", '0: :::MLLOG {"key": "run_start", "value": null}', [Reading("start")]),
        ("mllog", ':::MLLOG {"key": "run_stop", "metadata": {"status": "success"}}', [Reading("stop")]),
        ("mllog", "MLLOG", []),
    ],
)
def test_a_line_says_what_it_says(quality: str, line: str, readings: list[Reading]) -> None:
    assert list(side(quality).reader()(line)) == readings


def test_start_stop_and_the_reported_time_are_read_in_their_order() -> None:
    read = side("loss=(.*?),", start="warm", stop="done", reported=r"(?P<ms>\d+) ms").reader()
    assert list(read("warm")) == [Reading("start")]
    assert list(read("loss=3.0, warm")) == [Reading("quality", 3.0), Reading("start")]  # which is of before the start
    assert list(read("loss=2.0, 250 ms, done")) == [Reading("reported", 0.25), Reading("quality", 2.0), Reading("stop")]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"quality": "loss:("}, "is no regular expression"),
        ({"quality": "loss"}, "has no group"),
        ({"quality": "(a)(b)"}, "has no group"),
        ({"quality": "(a)", "reported": r"(\d+) s"}, "names no unit"),
        ({"quality": "(a)", "metric": ""}, "metric"),
        ({"quality": "(a)", "seed_variable": "A=B"}, "'A=B' or a command has a character"),
    ],
)
def test_a_pattern_that_cannot_be_used_is_refused(settings: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        side(**settings)  # type: ignore[arg-type]
