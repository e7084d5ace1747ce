#!/usr/bin/env bash
# The first hour of a practitioner who wants single methods on a model of her own. FOLDER: an empty one.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/walk.bash"
cd "$1"
run timedrun --version
sees '^timedrun [0-9]'
fails 2 timedrun
sees 'one of the verbs below'
run timedrun doctor
sees '^torch ' && sees '^\[digits\] '
say 'eval "$(timedrun --completion bash)"'
bash -c 'eval "$(timedrun --completion bash)" && complete -p timedrun'
say 'timedrun show | head -1'
{ timedrun show 2>errors || true; } | head -1
[ ! -s errors ]

# The loop of the page as it is printed. What it saves, a new process can resume and use.
sed -n '/^```python$/,/^```$/{/^```$/q;/^```python$/!p}' "$repository/docs/own_model.md" >loop.py
run python loop.py
sees '^0\.'
[ -s resume.pt ] && [ -s averaged.pt ]

# Wrong use is refused with what to do; half precision, torch.compile and a resumed average are as in float32.
cat >use.py <<'PYTHON'
import torch
from torch import nn

from timedrun.methods import EMA, ALiBi, BlurPool, LabelSmoothing, LogBias, ProgressiveResizing, stack


def network():
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 32, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


images, labels = torch.randn(8, 3, 32, 32), torch.randint(10, (8,))
transformer = nn.Sequential(nn.TransformerEncoderLayer(16, 2, 16), nn.Linear(16, 10, bias=False))
for wrong in (
    lambda: stack(ALiBi()).model(transformer),
    lambda: stack(LogBias()).model(transformer),
    lambda: stack(BlurPool()).model(transformer),
    lambda: stack(EMA()).verify(),
    lambda: stack([EMA()]),
    lambda: stack(ProgressiveResizing()).batch(torch.ones(4, 16), labels, 10),
    lambda: stack(ProgressiveResizing()).before_step(network(), 0, 3),
    lambda: stack(ProgressiveResizing()).batch({"pixel_values": images}, labels, 10),
    lambda: stack(LabelSmoothing()).batch_dict({"pixel_values": images, "labels": labels}),
    lambda: stack(BlurPool(), EMA()).load_state_dict(torch.load("resume.pt")["methods"]),
):
    try:
        wrong()
    except (RuntimeError, TypeError, ValueError) as error:
        print(f"refused: {type(error).__name__}: {error}")

saved, speed = torch.load("resume.pt"), stack(BlurPool(), LabelSmoothing(), EMA(half_life=8, update_interval=2))
model = speed.model(network())
model.load_state_dict(saved["model"])
speed.load_state_dict(saved["methods"])
with speed.evaluation(model):
    averaged = torch.load("averaged.pt")
    print("resumed average:", all(torch.equal(tensor, averaged[name]) for name, tensor in model.state_dict().items()))

speed = stack(BlurPool(), EMA(half_life=1000, update_interval=1))
model = torch.compile(speed.model(network().bfloat16()), backend="eager")
for step in range(1, 1002):
    speed.before_step(model, step - 1, step / 1002)
    nn.init.constant_(model.get_parameter("4.bias"), float(step > 1))
    speed.after_step(model)
with speed.evaluation(model):
    print("one half-life in bfloat16:", model.get_parameter("4.bias")[0].item(), model(images.bfloat16()).dtype)
PYTHON
run python use.py
[ "$(grep -c '^refused: ' seen)" = 10 ]
sees 'NoEffect: alibi found no GPT-2' && sees 'changed nothing in this run: ema'
sees 'ValueError: progress is the share of the whole run' && sees 'batch_dict takes a dict'
sees 'resumed average: True' && sees 'one half-life in bfloat16: 0.5 torch.bfloat16'

# Two processes hold the same average.
cat >parallel.py <<'PYTHON'
import os
import sys

import torch
import torch.distributed as dist
from torch import nn

from timedrun.methods import EMA, LogBias, stack


def compare() -> None:
    torch.manual_seed(dist.get_rank())
    speed = stack(LogBias(), EMA(half_life=4, update_interval=1))
    model = nn.parallel.DistributedDataParallel(speed.model(nn.Linear(4, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(8):
        speed.before_step(model, step, step / 8)
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        speed.after_step(model)
    with speed.evaluation(model):
        averages = [torch.zeros(3, 4) for _ in range(2)]
        dist.all_gather(averages, model.module.weight.detach())
    if dist.get_rank() == 0:
        print("same average on both ranks:", torch.equal(*averages))


dist.init_process_group("gloo")
compare()
dist.destroy_process_group()
# The threads of a gloo group can outlive it and abort the process at its exit (pytorch issue 190489).
sys.stdout.flush()
os._exit(0)
PYTHON
sizes=(env WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "MASTER_PORT=$(python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')")
"${sizes[@]}" RANK=1 python parallel.py &
run "${sizes[@]}" RANK=0 python parallel.py
wait $!
sees 'same average on both ranks: True'

# A folder of hers with a benchmark's name is not imported.
mkdir image_classification
echo 'raise SystemExit("the wrong package")' >image_classification/__init__.py
run timedrun show
sees '^image_classification: ' && sees 'digits_methods'
