"""Each preset reads the output of its script, in the form in which that prints it: start, quality, stop, own time."""

import math
from collections.abc import Iterator

import pytest

from timedrun.commands.parser import parser
from timedrun.commands.race_toml import parsed, presets
from timedrun.racing.command_side import CommandSide
from timedrun.racing.command_tuning import KEPT
from timedrun.racing.output_reader import OutputReader, Reading

MODDED_NANOGPT = """\
Running Python 3.12.7 and PyTorch 2.10.0 compiled for CUDA 12.8
Compiling model and warming up kernels (~7 minutes on first execution)
step:0/1555 val_loss:10.8301 train_time:0ms step_avg:0.03ms
step:1/1555 train_time:79ms step_avg:78.99ms
step:250/1555 val_loss:4.4962 train_time:17306ms step_avg:69.22ms
step:1555/1555 val_loss:3.2779 train_time:98406ms step_avg:63.28ms
"""
NANOCHAT = """\
Total number of training tokens: 471,859,200
Step 00000 | Validation bpb: 3.301984
step 00000/00900 (0.00%) | loss: 11.090355 | dt: 24876.11ms | total time: 0.00m
step 00042/00900 (4.67%) | loss: 7.431298 | dt: 502.71ms | total time: 0.25m | eta: 7.2m
Step 00250 | Validation bpb: 1.163207
Step 00250 | CORE metric: 0.0614
Total training time: 7.50m
Minimum validation bpb: 0.975310
"""
AIRBENCH = """\
---------------------------------------------------------------------------------------------------------------
|  run     |  epoch  |  train_loss  |  val_loss  |  train_acc  |  val_acc  |  tta_val_acc  |  total_time_seconds  |
---------------------------------------------------------------------------------------------------------------
|  warmup  |      0  |      2.4021  |    2.3044  |     0.1064  |   0.0993  |               |              9.1042  |
|          |   eval  |      2.3068  |    2.3031  |     0.1182  |   0.1009  |       0.1012  |             14.8310  |
---------------------------------------------------------------------------------------------------------------
|       0  |      0  |      1.6021  |    1.3117  |     0.5234  |   0.6418  |               |              0.3744  |
|          |      9  |      0.9344  |    0.9716  |     0.9502  |   0.9348  |               |              3.6120  |
|          |   eval  |      0.9344  |    0.9716  |     0.9502  |   0.9348  |       0.9407  |              3.8291  |
---------------------------------------------------------------------------------------------------------------
|       1  |      0  |      1.6113  |    1.2983  |     0.5195  |   0.6502  |               |              0.3741  |
"""
TRANSFORMERS = """\
Loading weights: 100%|##########| 199/199 [00:00<00:00, 904.11it/s]
  0%|          | 0/16 [00:00<?, ?it/s]
{'loss': '0.6581', 'grad_norm': '2.271', 'learning_rate': '6.25e-06', 'epoch': '1.875'}
  0%|          | 0/8 [00:00<?, ?it/s]\x1b[A
\x1b[A{'eval_loss': '0.6852', 'eval_runtime': '0.0029', 'eval_samples_per_second': '2.192e+04', 'epoch': '2'}
{'train_runtime': '62.7', 'train_samples_per_second': '2040', 'train_loss': '0.6856', 'epoch': '2'}
"""
LIGHTNING = """\
Sanity Checking DataLoader 0: 100%|##########| 2/2 [00:00<00:00, 210.11it/s]
Training: |          | 0/? [00:00<?, ?it/s]
Epoch 0:   0%|          | 0/8 [00:00<?, ?it/s]
Epoch 0: 100%|##########| 8/8 [00:00<00:00, 322.40it/s]
Validation: |          | 0/? [00:00<?, ?it/s]
Validation DataLoader 0: 100%|##########| 8/8 [00:00<00:00, 901.77it/s]\x1b[A
Epoch 0: 100%|##########| 8/8 [00:00<00:00, 201.14it/s, val_loss=0.512]
Epoch 0: 100%|##########| 8/8 [00:00<00:00, 200.14it/s, val_loss=0.512]
Epoch 1:  50%|#####     | 4/8 [00:00<00:00, 310.02it/s, val_loss=0.512]
Validation DataLoader 0: 100%|##########| 8/8 [00:00<00:00, 901.77it/s]\x1b[A
Epoch 1: 100%|##########| 8/8 [00:00<00:00, 204.30it/s, v_num=3, val_loss=nan.0, val_acc=0.91]
`Trainer.fit` stopped: `max_epochs=2` reached.
Validation DataLoader 0: 100%|##########| 8/8 [00:00<00:00, 901.77it/s]
       Validate metric             DataLoader 0
\u2502         val_loss          \u2502    0.23104503750801086    \u2502
"""
RICH = "\x1b[2KEpoch 0/3  \x1b[35m\u2501\u2501\x1b[90m\u257a\u2501\x1b[0m 10/20 0:00:00 45.8it/s val_loss: 1.000\n"
NANOGPT = """\
number of parameters: 10.65M
step 0: train loss 10.9874, val loss 10.98
iter 0: loss 10.9873, time 37291.30ms, mfu -100.00%
step 250: train loss 2.4711, val loss 2.4927
"""
TIMM = """\
Scheduled epochs: 10 (1251 updates per epoch). LR stepped per epoch.
Train: 0 [   0/1251 (  0%)]  Loss: 6.94 (6.94)  Time: 1.5s, 170.2/s  LR: 1.0e-05  Data: 0.9 (0.9)
Test: [   0/195]  Time: 1.201 (1.201)  Loss:  0.9312 (0.9312)  Acc@1: 80.4688 (80.4688)  Acc@5: 95.3125 (95.3125)
Test: [ 195/195]  Time: 0.101 (0.201)  Loss:  1.3312 (1.2312)  Acc@1: 60.0000 (71.5000)  Acc@5: 85.3125 (90.3125)
Test (EMA): [ 195/195]  Time: 0.1 (0.2)  Loss:  1.3 (1.2)  Acc@1: 62.0000 (72.5000)  Acc@5: 85.3125 (90.3125)
"""
MNIST = """\
Train Epoch: 1 [0/60000 (0%)]\tLoss: 2.282550

Test set: Average loss: 0.0489, Accuracy: 9832/10000 (98%)
"""
TORCHTITAN = """\
[titan] 2025-11-02 10:00:00,101 - root - INFO - Training starts at step 1
[titan] 2025-11-02 10:00:05,230 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss: 12.2540
[titan] 2025-11-02 10:01:05,230 - root - INFO - \x1b[33mvalidate step: 10  \x1b[32mloss:  7.0231  \x1b[36mmemory
[titan] 2025-11-02 10:02:05,230 - root - INFO - validate step: 20  loss:  6.5012  memory:  1.21GiB(1.52%)  tps: 9,120
[titan] 2025-11-02 10:02:06,000 - root - INFO - Training completed
"""


def quality(value: float, step: int | None = None) -> Reading:
    return Reading("quality", value, step)


def own(seconds: float) -> Reading:
    return Reading("reported", seconds)


START, STOP, HELD = Reading("start"), Reading("stop"), Reading("start held")
WARM_UP, LAST = [own(14.831), quality(0.1012), STOP, START], [own(3.8291), quality(0.9407), STOP, START]
OUTPUTS: dict[str, tuple[str, list[Reading]]] = {
    "modded-nanogpt": (
        MODDED_NANOGPT,
        [own(0), quality(10.8301, 0), START, own(17.306), quality(4.4962, 250), own(98.406), quality(3.2779, 1555)],
    ),
    "nanochat": (NANOCHAT, [quality(3.301984, 0), START, own(0), own(15), quality(1.163207, 250), own(450)]),
    "airbench": (AIRBENCH, [*WARM_UP, *LAST]),
    "transformers": (TRANSFORMERS, [HELD, START, quality(0.6852), own(62.7)]),
    "lightning": (LIGHTNING, [START, quality(0.512), quality(math.nan), quality(0.23104503750801086)]),
    "lightning with Rich": (RICH, [Reading("refused")]),
    "nanogpt": (NANOGPT, [quality(10.98, 0), START, quality(2.4927, 250)]),
    "timm": (TIMM, [START, quality(71.5)]),
    "mnist": (MNIST, [START, quality(0.9832)]),
    "torchtitan": (TORCHTITAN, [START, quality(7.0231, 10), quality(6.5012, 20)]),
}


def readings(words: list[str], output: str) -> Iterator[Reading]:
    """Yield what a race with the options `words` reads of `output`."""
    arguments, _ = parsed(parser(), ["race", "command", "a", "b", "--target", "1", *words])
    given = {name: value for name in KEPT if (value := getattr(arguments, name, None)) is not None}
    reader = OutputReader(CommandSide(name="a", command="train", **given))
    for at, line in enumerate(output.splitlines()):
        yield from reader.read(line, at)
    yield from reader.flush(ended=True)


@pytest.mark.parametrize("script", OUTPUTS)
def test_a_preset_reads_the_output_of_its_script(script):
    output, expected = OUTPUTS[script]
    found = list(readings(["--preset", script.partition(" ")[0]], output))
    assert [reading.kind for reading in found] == [reading.kind for reading in expected]
    assert [r.value for r in found] == pytest.approx([r.value for r in expected], nan_ok=True)
    assert [reading.step for reading in found] == [reading.step for reading in expected]


def test_every_preset_has_an_output_here():
    assert presets().keys() == {script.partition(" ")[0] for script in OUTPUTS}


def test_an_option_beside_a_preset_counts_and_a_quality_brings_its_own_direction():
    words = ["race", "command", "--preset", "modded-nanogpt"]
    given, _ = parsed(parser(), words)
    assert (given.lower, given.metric) == (True, "val_loss")
    given, _ = parsed(parser(), [*words, "--no-lower", "--start", ""])
    assert (given.lower, given.metric, given.start) == (False, "val_loss", "")
    given, _ = parsed(parser(), [*words, "--quality", "acc=(.*)"])
    assert (given.quality, given.lower) == ("acc=(.*)", None) and "val_loss" in given.start
    assert not hasattr(given, "metric")
