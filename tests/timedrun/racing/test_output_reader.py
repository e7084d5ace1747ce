"""What is read of a command's output: whole numbers, in the forms in which training scripts print them, or none."""

import pytest

from judging.ground.errors import UsageError
from timedrun.racing.command_side import CommandSide
from timedrun.racing.output_reader import OutputReader, Reading


def side(quality: str, **settings: object) -> CommandSide:
    values = {"target": 3.28, "lower": True} | settings
    return CommandSide(name="a", command="train", quality=quality, **values)  # type: ignore[arg-type]


def readings(of: CommandSide, *lines: str | tuple[float, str]) -> list[Reading]:
    """Return what is read of lines, each at its time or a second after the one before."""
    reader = OutputReader(of)
    timed = [line if isinstance(line, tuple) else (at, line) for at, line in enumerate(lines, 1)]
    found = [reading for at, line in timed for reading in reader.read(line, at)]
    return [reading._replace(at=0.0) for reading in [*found, *reader.flush()]]


def kinds(of: CommandSide, *lines: str | tuple[float, str]) -> str:
    """Return the qualities that are read, and other kinds of readings, as text."""
    return " ".join(f"{r.value:g}" if r.kind == "quality" else r.kind for r in readings(of, *lines))


@pytest.mark.parametrize(
    ("quality", "line", "expected"),
    [
        ("val_loss:{}", "step:125/1390 val_loss:4.1284 train_time:21ms", [Reading("quality", 4.1284)]),
        ("step {step}/.* val_loss:{}", "step 9/10 val_loss:1e-3", [Reading("quality", 0.001, 9)]),
        (r"step:(?P<step>\d+).* val_loss:(?P<quality>\S+)", "step:9 val_loss:1e-3", [Reading("quality", 0.001, 9)]),
        ("val_loss:(\\S+)", "val_loss:2.5.", [Reading("quality", 2.5)]),
        ("val_loss:{}", "\x1b[1mval_loss\x1b[0m:\x1b[32m3.1\x1b[0m", [Reading("quality", 3.1)]),
        ("json:eval_loss", '{"eval_loss": 2.5, "step": 40}', [Reading("quality", 2.5, 40)]),
        ("json:eval_loss", '{"eval_loss": "2.5e-1"}', [Reading("quality", 0.25)]),
        ("json:eval_loss", '{"eval_loss": null}', []),
        (r"step {step}(?: val {})?", "step 100", []),
        (r"step (?P<step>\d+) (?P<quality>\S+)", f"step {10**19} 2.5", [Reading("quality", 2.5)]),
        ("json:eval_loss", '{"eval_loss": "2.5"', []),
        ("mllog", ':::MLLOG {"key": "eval_accuracy", "value": 0.7}', [Reading("quality", 0.7)]),
        ("mllog", '0: :::MLLOG {"key": "run_start", "value": null}', [Reading("start")]),
        ("mllog", ':::MLLOG {"key": "run_stop", "metadata": {"status": "success"}}', [Reading("stop")]),
    ],
)
def test_a_line_says_what_it_says(quality, line, expected):
    assert readings(side(quality), line) == expected


@pytest.mark.parametrize(
    ("quality", "line", "value"),
    [
        ("loss:([0-9.]+)", "loss:1.2e+01", "write --quality 'loss:{}'"),
        ("loss: (?P<quality>\\d+)", "loss: 12.5", "reads '12' of '12.5'"),
        (r"loss:.*(\d\.\d+)", "loss:12.25", "reads '2.25' of '12.25'"),
        (r"loss:.*?([0-9.]+)", "loss:-0.5", "reads '0.5' of '-0.5'"),
        ("loss:{}", "loss:1,234.5", "decimal point"),
        ("loss:{}", "loss:0,95", "decimal point"),
        ("loss:(\\S+)", "loss:2.5%", "write --quality 'loss:{}%', and --target in percent"),
        ("loss:{}", "loss: 2.5", ""),
        ("loss:{}", "loss:2.5 %", "in percent"),
        ("loss:{} ?%", "loss:2.5 %", "2.5"),
        ("loss:{}", "loss:2.5s, 7%", "2.5"),
        (r"^\d+,{}", "12,0.95,0.5", "0.95"),
        ("loss {}", "epoch-2-loss .5/10", "0.5"),
        ("loss {step} {}", "loss 1,250 0.5", ""),
        ("loss (?P<step>[0-9]+).* {}", "loss 1,250 0.5", "reads '1' of '1,250'"),
        ("json:loss", '{"loss": "95%"}', "reads '95%', which is no number of JSON"),
        ("loss=(.*)", "loss=tensor(2.5)", "is no number"),
    ],
)
def test_a_number_is_read_whole_or_the_run_is_refused_with_the_pattern_to_write(quality, line, value):
    found = " ".join(reading.text or f"{reading.value:g}" for reading in readings(side(quality), line))
    assert value in found and bool(value) == bool(found)


@pytest.mark.parametrize("text", ["nan", "NaN", "-inf", "inf", "Infinity"])
@pytest.mark.parametrize(
    "quality", ["loss:([0-9.]+)", "loss:(?P<quality>\\d+\\.\\d+)", "loss:{}", "(?:a|(?:loss)):([0-9]+)"]
)
def test_what_is_not_finite_is_read_also_where_the_group_is_for_digits(quality, text):
    (reading,) = readings(side(quality), f"loss:{text} x")
    assert reading.kind == "quality" and str(reading.value) == str(float(text))
    (reading,) = readings(side(f"{quality} ppl [0-9.]+"), f"loss:{text} ppl nan")
    assert str(reading.value) == str(float(text))
    assert readings(side(quality), "loss:nanometers", "loss: info") == []


def test_start_stop_and_the_reported_time_are_read_in_their_order():
    of = side("loss=(.*?),", start="warm", stop="done", reported="{ms} ms")
    assert readings(of, "warm") == [Reading("start")]
    assert readings(of, "loss=3.0, warm") == [Reading("quality", 3.0), Reading("start")]  # which is of before the start
    stopped = [Reading("reported", 0.25), Reading("quality", 2.0), Reading("stop")]
    assert readings(of, "loss=2.0, 250 ms, done") == stopped
    assert readings(side("a{}", reported=r"took {}"), "took 2 s") == [Reading("reported", 2.0)]
    assert [reading.kind for reading in readings(of, "1,250 ms")] == ["text"]  # which is not half a time


@pytest.mark.parametrize(
    ("quality", "lines", "expected"),
    [
        ("acc {}", ["rank 0 acc 0.5", "x", "rank 1 acc 0.6"], "0.5 refused"),
        ("step {step} acc {}", [(10, "step 1 acc 0.5"), (10.2, "step 1 acc 0.5"), (20, "step 2 acc 0.5")], "0.5 0.5"),
        ("step {step} acc {}", [(10, "step 1 acc 0.5"), (10.2, "step 1 acc 0.7")], "refused 0.5"),
        ("acc {}", [(10, "0: epoch 1 acc 0.5"), (10.2, "1: epoch 1 acc 0.5"), (20, "0: epoch 2 acc 0.5")], "0.5 0.5"),
        ("acc {}", [(10, "epoch 1 acc 0.5"), (10.2, "epoch 1 acc 0.6")], "refused 0.5"),
        ("acc {}", [(10, "acc 0.5"), (20, "acc 0.5"), (20.1, "acc 0.5")], "0.5 0.5"),  # a plateau, and a rank
        ("acc {}", [(10, "acc 0.5"), (10, "acc 0.6")], "0.5 0.6"),  # of a program that prints all at its end
        ("acc {}", [(10, "epoch 1 acc 0.5"), (10, "epoch 2 acc 0.5")], "0.5 0.5"),
    ],
)
def test_lines_of_several_ranks_are_one_evaluation(quality, lines, expected):
    assert kinds(side(quality), *lines) == expected


def test_the_source_in_a_traceback_is_not_read():
    lines = ["Traceback (most recent call last):", '  File "a.py", line 3', "    print('acc 0.95')", "Error: acc 1"]
    assert kinds(side("acc {}"), *lines, "acc 0.5") == "1 0.5"
    assert kinds(side("acc {}"), *(f"[rank1]: {line}" for line in lines[:3])) == ""


@pytest.mark.parametrize(
    ("quality", "settings", "value", "words"),
    [
        ("accuracy {}", {"target": 0.94}, 93.9, "93.9 for a target of 0.94: a percentage? Give --target 94"),
        ("accuracy {}", {"target": 94}, 0.939, "a fraction? Give --target 0.94"),
        ("accuracy {}", {"target": 0.94}, 0.939, ""),
        ("accumulated {}", {"target": 5}, 0.5, ""),
        ("loss {}", {"target": 0.5, "lower": True}, 7.0, ""),
    ],
)
def test_a_quality_in_another_unit_than_the_target_is_doubted(quality, settings, value, words):
    doubt = OutputReader(side(quality, **({"lower": False} | settings))).doubt(value)
    assert words in doubt and bool(words) == bool(doubt)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"quality": "loss:("}, "is no regular expression"),
        ({"quality": "loss"}, "has no place for the value; write 'val_loss:{}'"),
        ({"quality": "(val|test) loss {}"}, r"write \(\?:...\) for groups that are no number"),
        ({"quality": "(a)", "reported": r"(\d+) s"}, "names no unit"),
        ({"quality": "(a)", "metric": ""}, "metric"),
        ({"quality": "(a)", "seed_variable": "A=B"}, "'A=B' or a command has a character"),
    ],
)
def test_a_pattern_that_cannot_be_used_is_refused(settings, words):
    with pytest.raises(UsageError, match=words):
        side(**settings)  # type: ignore[arg-type]
