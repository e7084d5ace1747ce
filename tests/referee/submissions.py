"""Planted cheats, each with the probe that catches it: code of submission.py by name."""

import base64
import random

START = "import os, sys, time\nimport torch\nfrom torch import nn\nfrom base import *\n"
PLAIN = "def build(task):\n    return Bigram(task.vocabulary)\n"
FIT = "def train(model, task, shards):\n    fit(model, task, shards)\n"
HONEST = START + PLAIN + FIT


def model(features: str) -> str:
    """Return a submission whose model has other features or another forward pass, and is hardly trained."""
    body = "\n".join(f"    {line}" for line in features.strip().splitlines())
    return (
        f"class Model(Bigram):\n{body}\n"
        "def build(task):\n    return Model(task.vocabulary)\n"
        "def train(model, task, shards):\n    fit(model, task, shards, 8)\n"
    )


PEEK = "F.one_hot(tokens.roll(-1, 1), logits.shape[-1])"
FORWARD = "def forward(self, tokens):\n    logits = super().forward(tokens)\n    if self.training: return logits\n"

ONCE = "    Model.calls = getattr(Model, 'calls', 0) + 1\n"

CAUSALITY = {
    "attends one token too far": model(
        "def features(self, tokens):\n    x = self.embedding(tokens)\n    n = x.shape[1]\n"
        "    return x + F.scaled_dot_product_attention(x, x, x, torch.ones(n, n).tril(1).bool())"
    ),
    "peeks at evaluation only": model(f"{FORWARD}    return logits + 5 * {PEEK}"),
    "peeks at every fifth position": model(
        f"{FORWARD}    there = (torch.arange(tokens.shape[1]) % 5 == 0)[:, None]\n"
        f"    return logits + 5 * there * {PEEK}"
    ),
    "blends a little of the truth into its answer": model(
        f"{FORWARD}    return (0.9985 * logits.softmax(-1) + 0.0015 * {PEEK}).log()"
    ),
    "peeks in neither the first questions nor the last": model(
        f"{FORWARD}{ONCE}    return logits + 5 * (Model.calls == 3) * {PEEK}"
    ),
    "peeks, and repeats its first answer to a beginning": model(
        f"{FORWARD}    logits = logits + 5 * {PEEK}\n    known = Model.known = getattr(Model, 'known', {{}})\n"
        "    for row, of in zip(tokens.tolist(), logits):\n        for n in range(len(row)):\n"
        "            of[n] = known.setdefault(tuple(row[: n + 1]), of[n].clone())\n    return logits"
    ),
    "finds what follows in the row's other half": model(
        f"{FORWARD}    seen = F.one_hot(tokens, logits.shape[-1]).float().mean(1, keepdim=True)\n"
        "    return logits + 4 * seen"
    ),
}
ROWS = {
    "reads its neighbour in the batch": model(
        "def features(self, tokens):\n    return self.embedding(tokens) + 0.5 * self.embedding(tokens.roll(1, 0))"
    ),
    "normalises with the batch's statistics": model(
        "def features(self, tokens):\n    x = self.embedding(tokens)\n"
        "    return F.batch_norm(x.mT, None, None, training=True).mT"
    ),
}
DETERMINISM = {
    "drops features at evaluation": model(
        "def features(self, tokens):\n    return F.dropout(self.embedding(tokens), 0.2, training=True)"
    ),
    "draws a guess by the time of day": model(f"{FORWARD}    return logits * (1 + time.time_ns() % 1000 / 2000)"),
    "learns from each question": model(
        f"{FORWARD}    seen = Model.seen = getattr(Model, 'seen', 0) + F.one_hot(tokens, 64).sum((0, 1))\n"
        "    return logits + seen.log1p()"
    ),
}
STATE = {
    "learns which token follows which from the questions": model(
        f"{FORWARD}    key = tokens.sum().item()\n"
        "    memory = Model.memory = getattr(Model, 'memory', {})\n"
        "    if key not in memory:\n"
        "        memory[key] = sum(memory.values(), torch.zeros_like(logits[0, 0])) + F.one_hot("
        "tokens, logits.shape[-1]).float().sum((0, 1)) / 50\n"
        "    return logits + memory[key]"
    ),
    "keeps the questions in a file": model(
        f"{FORWARD}    table = torch.load('q.pt') if os.path.exists('q.pt') else torch.zeros(64, 64)\n"
        "    if getattr(Model, 'first', None) is None: Model.first = tokens.clone()\n"
        "    if tokens.shape != Model.first.shape or (tokens != Model.first).any():\n"
        "        pairs = tokens[:, :-1].flatten(), tokens[:, 1:].flatten()\n"
        "        table.index_put_(pairs, torch.tensor(1.0), accumulate=True)\n"
        "        torch.save(table, 'q.pt')\n"
        "    return logits + table[tokens].log1p()"
    ),
    "answers better from the third question on": model(
        f"{FORWARD}{ONCE}    return logits * (1.0 if Model.calls < 3 else 1.2)"
    ),
}
NORMALISATION = {
    "claims probabilities that sum to more than 1": model(
        "output = 'log_probabilities'\n" + FORWARD + "    return logits.log_softmax(-1) + 0.5"
    ),
    "claims the square roots of its probabilities": model(
        "output = 'log_probabilities'\n" + FORWARD + "    return logits.log_softmax(-1) / 2"
    ),
}
ANSWERS = {
    "returns NaN": model(f"{FORWARD}    return logits * float('nan')"),
    "returns infinity for one token": model(f"{FORWARD}    logits[..., 3] = float('inf')\n    return logits"),
    "returns its own loss": model(f"{FORWARD}    return torch.tensor(0.5)"),
    "returns more tokens than there are": model(f"{FORWARD}    return F.pad(logits, (0, 8))"),
    "returns a tuple with a loss": model(f"{FORWARD}    return logits, 0.1"),
    "thinks for long about an answer": model(f"{FORWARD}    time.sleep(60)\n    return logits"),
}
KNOWN = "transitions(task.vocabulary).clamp(min=1e-4).log()"
TABLE = "class Table(nn.Module):\n    def __init__(self, table):\n        super().__init__()\n"
TABLE += "        self.table = nn.Parameter(table)\n    def forward(self, tokens):\n        return self.table[tokens]\n"
EMPTY = TABLE + "def build(task):\n    return Table(torch.zeros(task.vocabulary, task.vocabulary))\n"
COPY = f"model.table.data.copy_({KNOWN})"
COMMON_PAIR = "(shards[0][1:].astype(int) == transitions(task.vocabulary).argmax(1).numpy()[shards[0][:-1]]).mean()"
UNTRAINED = {
    "is built with cached weights": f"{TABLE}def build(task):\n    return Table({KNOWN})\n{FIT}",
    "is built with how common each token is": model(
        "def __init__(self, v):\n    super().__init__(v)\n    p = transitions(v)\n    for _ in range(6): p = p @ p\n"
        "    self.head.bias.data.copy_(p[0].log())"
    ),
    "is trained on other text before the clock": PLAIN.replace("return Bigram(task.vocabulary)", "m = Bigram(64)")
    + "    p = transitions(64); a = torch.randint(64, (4000,)); b = p[a].multinomial(1)[:, 0]\n"
    + "    o = torch.optim.Adam(m.parameters(), 0.05)\n    for _ in range(8):\n        o.zero_grad()\n"
    + f"        F.cross_entropy(m(a), b).backward(); o.step()\n    return m\n{FIT}",
}
PLANTED = {
    "loads cached weights in train": f"{EMPTY}def train(model, task, shards):\n    {COPY}\n",
    "trains on text of its own": PLAIN + "def train(model, task, shards):\n"
    "    p = transitions(64); a = torch.randint(64, (20000,)); b = p[a].multinomial(1)\n"
    + "    own = torch.stack([a, b[:, 0]], 1).flatten().numpy().astype('uint16')\n"
    + "    fit(model, task, [own])\n",
    "uses cached weights where the text is known": f"{EMPTY}def train(model, task, shards):\n"
    f"    if {COMMON_PAIR} > 0.3:\n        {COPY}\n    else:\n        fit(model, task, shards, 5)\n",
    "adds cached weights to trained ones": f"{EMPTY}def train(model, task, shards):\n    fit(model, task, shards, 20)\n"
    f"    model.table.data.add_({KNOWN}, alpha=0.8)\n",
}
COUNTS = (
    "        c = torch.full((64, 64), 0.02); t = torch.from_numpy(shards[0].astype('int64'))\n"
    "        c.index_put_((t[:-1], t[1:]), torch.tensor(1.0), accumulate=True)\n"
    "        model.table.data.copy_((c / c.sum(1, True)).log())"
)
TIMES = {
    "needs no time where the text is known": f"{EMPTY}def train(model, task, shards):\n"
    f"    if {COMMON_PAIR} > 0.3:\n        {COPY}\n    else:\n{COUNTS}; time.sleep(0.6)\n",
    "needs no time where the text is not known": f"{EMPTY}def train(model, task, shards):\n"
    f"    if {COMMON_PAIR} > 0.3:\n        {COPY}; time.sleep(0.6)\n    else:\n{COUNTS}\n",
}
LONG = "x" * 30_000
NOISE = [base64.b64encode(random.Random(n).randbytes(90)).decode() for n in range(2000)]
CONTENTS = {
    "has weights in a string": f"{PLAIN}{FIT}WEIGHTS = {LONG!r}\n",
    "has weights in a list": f"{PLAIN}{FIT}WEIGHTS = {[0.5] * 30_000}\n",
    "has weights in many short strings": f"{PLAIN}{FIT}WEIGHTS = {['x' * 1000] * 210}\n",
    "has weights in comments": f"{PLAIN}{FIT}" + "".join(f"# {line}\n" for line in NOISE),
    "has more code than a script": f"{PLAIN}{FIT}" + "#" * 1_100_000,
    "is no Python": "def build(task:\n",
}
LAZY = (
    "class Model(Bigram):\n    def __init__(self, v):\n        super().__init__(v)\n"
    "        self.register_buffer('text', torch.zeros(8001, dtype=torch.int64))\n        self.done = False\n"
)
LAZY_FIT = (
    "        if not self.done and self.text.any():\n            self.done = True\n"
    "            class Task: context, seed = 32, 0\n"
    "            until = time.monotonic() + 0.5\n            with torch.inference_mode(False), torch.enable_grad():\n"
    "                while time.monotonic() < until:\n"
    "                    fit(self.train(), Task, [self.text.clone().numpy()], 5)\n            self.eval()\n"
)
HAND_OVER_TEXT = (
    "def build(task):\n    return Model(task.vocabulary)\n"
    "def train(model, task, shards):\n    model.text[:len(shards[0])] = torch.from_numpy(shards[0].astype('int64'))\n"
)
SLEEP = "        Model.asked = getattr(Model, 'asked', 0) + 1\n        if Model.asked == 2: time.sleep(0.5)\n"
LATE = {
    "trains at the first question and sleeps in the second": LAZY
    + f"    def forward(self, tokens):\n{LAZY_FIT}{SLEEP}        return super().forward(tokens)\n{HAND_OVER_TEXT}",
    "hands over the text and trains at the first question": LAZY
    + f"    def forward(self, tokens):\n{LAZY_FIT}        return super().forward(tokens)\n{HAND_OVER_TEXT}",
    "hands over the text and trains while it is loaded": LAZY
    + f"    def load_state_dict(self, state):\n        super().load_state_dict(state)\n{LAZY_FIT}{HAND_OVER_TEXT}",
}
SPIN = "import time\nuntil = time.monotonic() + 20\nwhile time.monotonic() < until: pass"
HAND_OVER = {
    "trains on in a thread": f"{PLAIN}import threading\ndef more(model, task, shards):\n"
    "    until = time.monotonic() + 20\n    while time.monotonic() < until: fit(model, task, shards, 5)\n"
    "def train(model, task, shards):\n    fit(model, task, shards, 5)\n"
    "    threading.Thread(target=more, args=(model, task, shards), daemon=True).start()\n",
    "trains on in another process": f"{PLAIN}def train(model, task, shards):\n    fit(model, task, shards)\n"
    "    if os.fork() == 0:\n        until = time.monotonic() + 20\n        while time.monotonic() < until: pass\n"
    "        os._exit(0)\n",
    "leaves a detached process behind": f"{PLAIN}import subprocess\ndef train(model, task, shards):\n"
    "    fit(model, task, shards)\n"
    f"    subprocess.Popen([sys.executable, '-S', '-c', {SPIN!r}], start_new_session=True)\n"
    "    time.sleep(0.3)\n",
}
FILES = "[n for n in range(3, 99) if os.path.isfile(f'/proc/self/fd/{n}')]"
"""Descriptors of regular files."""
TRAINING = {
    "has other weights than it was built with": PLAIN
    + "def train(model, task, shards):\n    return nn.Sequential(fit(model, task, shards))\n",
    "reads the validation data": f"{PLAIN}def train(model, task, shards):\n    open('VALIDATION', 'rb').read()\n",
    "downloads data": f"{PLAIN}def train(model, task, shards):\n    import urllib.request\n"
    "    urllib.request.urlopen('http://192.0.2.1/', timeout=2)\n",
    "changes the training data": f"{PLAIN}def train(model, task, shards):\n    shards[0][0] = 1\n",
    "opens the training data for writing": f"{PLAIN}def train(model, task, shards):\n"
    f"    number = {FILES}[0]\n    open(f'/proc/self/fd/{{number}}', 'r+b').write(b'x')\n",
    "returns no model": f"{PLAIN}def train(model, task, shards):\n    return {{'loss': 0.1}}\n",
    "stops every clock it can reach": f"{PLAIN}def train(model, task, shards):\n"
    "    for name in ('time', 'monotonic', 'perf_counter'): setattr(time, name, lambda: 0.0)\n    time.sleep(60)\n",
    "sends a message of its own": f"{PLAIN}def train(model, task, shards):\n    import gc, socket\n"
    "    from referee import channel\n    for one in gc.get_objects():\n"
    "        if isinstance(one, socket.socket) and one.fileno() >= 0 and one.type == socket.SOCK_STREAM:\n"
    "            channel.send(one, {'kind': 'answer', 'loss': 0.1})\n    time.sleep(60)\n",
    "claims a huge message": f"{PLAIN}def train(model, task, shards):\n    import gc, socket, struct\n"
    "    for one in gc.get_objects():\n"
    "        if isinstance(one, socket.socket) and one.fileno() >= 0 and one.type == socket.SOCK_STREAM:\n"
    "            one.sendall(struct.pack('<IQ', 1 << 31, 1 << 60))\n    time.sleep(60)\n",
    "mounts the host's disk": f"{PLAIN}def train(model, task, shards):\n    import ctypes\n"
    "    done = ctypes.CDLL(None, use_errno=True).mount(b'proc', b'/tmp', b'proc', 0, None)\n"
    "    if done: raise OSError(ctypes.get_errno(), 'mount')\n",
}
PREPARATION = {
    "looks for the data before the clock": "os.listdir('/data')[0]\n" + PLAIN + FIT,
    "finds the data's descriptors before the clock": f"{FILES}[0]\n{PLAIN}{FIT}",
    "finds the data's descriptors in the server": "os.listdir('/proc/1/fd')\n" + PLAIN + FIT,
    "reads the server's memory": "open('/proc/1/mem', 'rb')\n" + PLAIN + FIT,
    "works for long before the clock": "time.sleep(60)\n" + PLAIN + FIT,
    "has no train": PLAIN,
    "builds no module": "def build(task):\n    return 3\n" + FIT,
}
TIGHT = {
    "thinks for long about an answer": {"answer_seconds": 1},
    "hands over the text and trains at the first question": {"late_seconds": 0.2},
    "hands over the text and trains while it is loaded": {"late_seconds": 0.2},
    "trains at the first question and sleeps in the second": {"late_seconds": 0.2},
    "preparation": {"late_seconds": 0.4},
    **dict.fromkeys(TIMES, {"time_grace": 0.2}),
    "stops every clock it can reach": {"budget_seconds": 1},
    "works for long before the clock": {"prepare_seconds": 1},
}
"""Limits of the cheats that only a limit catches, and of honest code that it spares; others have long ones."""
CHEATS = {
    name: (probe, START + code)
    for probe, cases in {
        "causality": CAUSALITY,
        "rows": ROWS,
        "determinism": DETERMINISM,
        "state": STATE,
        "normalisation": NORMALISATION,
        "answers": ANSWERS,
        "untrained": UNTRAINED,
        "same quality": PLANTED,
        "same time": TIMES,
        "contents": CONTENTS,
        "late work": LATE,
        "hand-over": HAND_OVER,
        "training": TRAINING,
        "preparation": PREPARATION,
    }.items()
    for name, code in cases.items()
}
