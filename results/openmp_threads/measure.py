"""Measure steps of a small transformer on two threads, with GOMP_SPINCOUNT=10000 and without it, in turns, on idle
cores and beside two processes that fill both. `python measure.py` writes times.json beside itself."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn

TURNS, SECONDS, SPIN = 4, 8, {"GOMP_SPINCOUNT": "10000"}


def step_rate() -> float:
    """Return the steps a second of six layers of 192, batches of 32 rows of 32, AdamW, in fp32."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(192, 6, 768, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(64, 192), nn.TransformerEncoder(layer, 6), nn.Linear(192, 64))
    optimizer, tokens = torch.optim.AdamW(model.parameters(), 1e-3), torch.randint(64, (32, 33))
    for number in range(10_000):
        if number == 1:
            start = time.monotonic()
        nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        if number and time.monotonic() - start > SECONDS:
            break
    return number / (time.monotonic() - start)


def measured(variables: dict[str, str]) -> float:
    environment = {**os.environ, "OMP_NUM_THREADS": "2", **variables}
    return float(subprocess.check_output([sys.executable, __file__, "step"], env=environment))


if __name__ == "__main__":
    if sys.argv[1:] == ["step"]:
        print(step_rate())
        sys.exit()
    rates: dict[str, list[float]] = {}
    for others in (0, 2):
        loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(others)]
        for _ in range(TURNS):
            for name, variables in (("default", {}), ("GOMP_SPINCOUNT=10000", SPIN)):
                rates.setdefault(f"{name}, {others} other processes", []).append(round(measured(variables), 3))
        for loop in loops:
            loop.kill()
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    machine = next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    facts = {"processor": machine, "processors": os.cpu_count(), "torch": torch.__version__, "threads": 2}
    times = {"unit": "steps/s", "seconds of a turn": SECONDS, **facts, "rates": rates}
    Path(__file__).with_name("times.json").write_text(json.dumps(times, indent=1) + "\n")
