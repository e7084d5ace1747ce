"""Honest submissions, which must be accepted: name -> code of submission.py after the common imports."""

from tests.referee.cheats import FIT, FORWARD, PLAIN, START, model

IN = "x = self.embedding(tokens)\n"


def part(layer: str, features: str) -> str:
    """Return a submission whose model has one more layer, made with the width `w`."""
    start = f"def __init__(self, v, w=32):\n    super().__init__(v, w)\n    self.layer = {layer}\n"
    return model(f"{start}def features(self, tokens):\n    {IN}    return {features}")


def trained(body: str) -> str:
    """Return a submission with its own `train`."""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return f"{PLAIN}def train(model, task, shards):\n{lines}\n"


LOOP = "for inputs, targets in batches(task, shards, 40):\n    optimizer.zero_grad()\n"
HONEST = {
    "plain": PLAIN + FIT,
    "one layer of LSTM": part("nn.LSTM(w, w, batch_first=True)", "x + self.layer(x)[0]"),
    "causal attention": part(
        "nn.Linear(w, 3 * w)", "x + F.scaled_dot_product_attention(*self.layer(x).chunk(3, -1), is_causal=True)"
    ),
    "a transformer layer of torch": part(
        "nn.TransformerEncoderLayer(w, 2, 32, batch_first=True)",
        "x + self.layer(x, src_mask=nn.Transformer.generate_square_subsequent_mask(x.shape[1]), is_causal=True)",
    ),
    "causal convolution": part("nn.Conv1d(w, w, 3)", "x + self.layer(F.pad(x.mT, (2, 0))).mT"),
    "dropout in training": part("nn.Dropout(0.05)", "self.layer(x)"),
    "layer norm": part("nn.LayerNorm(w)", "self.layer(x)"),
    "batch norm with running statistics": part("nn.BatchNorm1d(w, momentum=0.3)", "self.layer(x.mT).mT"),
    "gated hidden layer": part("nn.Linear(w, 2 * w)", "x + F.glu(self.layer(x))"),
    "squared ReLU": part("nn.Linear(w, w)", "x + self.layer(x).relu().square()"),
    "learned positions": part("nn.Parameter(torch.zeros(32, w))", "x + self.layer[: x.shape[1]]"),
    "the token before as well": part("nn.Embedding(v, w)", "x + 0.1 * F.pad(self.layer(tokens), (0, 0, 1, 0))[:, :-1]"),
    "mean of all tokens so far": part(
        "nn.Linear(w, w)", "x + 0.1 * self.layer(x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None])"
    ),
    "sliding window": part(
        "nn.Identity()",
        "x + 0.1 * F.scaled_dot_product_attention(x, x, x, torch.ones(x.shape[1], x.shape[1]).tril().triu(-4).bool())",
    ),
    "logits with a soft cap": model(
        f"{FORWARD.replace('    if self.training: return logits', '')}    return 15 * (logits / 15).tanh()"
    ),
    "log-probabilities, declared": model(
        "output = 'log_probabilities'\ndef forward(self, tokens):\n    return super().forward(tokens).log_softmax(-1)"
    ),
    "log-probabilities, not declared": model(
        "def forward(self, tokens):\n    return super().forward(tokens).log_softmax(-1)"
    ),
    "logits in bfloat16": model("def forward(self, tokens):\n    return super().forward(tokens).bfloat16()"),
    "autocast to bfloat16": model(
        "def forward(self, tokens):\n    with torch.autocast('cpu', torch.bfloat16):\n"
        "        return super().forward(tokens)"
    ),
    "float64": model("def __init__(self, v):\n    super().__init__(v)\n    self.double()"),
    "padded vocabulary, cut": "class Model(Bigram):\n    def forward(self, tokens):\n"
    "        return super().forward(tokens)[..., :64]\ndef build(task):\n    return Model(task.vocabulary + 16)\n"
    + FIT,
    "tied weights": "class Model(Bigram):\n    def __init__(self, v):\n        super().__init__(v, 48)\n"
    "        self.mix = nn.Linear(48, 48)\n        nn.init.normal_(self.embedding.weight, std=0.02)\n"
    "        self.head.weight = self.embedding.weight\n"
    "    def features(self, tokens):\n        return self.mix(self.embedding(tokens))\n"
    "def build(task):\n    return Model(task.vocabulary)\n" + FIT,
    "random start of the head": model(
        "def __init__(self, v):\n    super().__init__(v)\n    self.head.reset_parameters()"
    ),
    "counts of pairs, without gradients": "class Model(nn.Module):\n    def __init__(self, v):\n"
    "        super().__init__()\n"
    "        self.register_buffer('counts', torch.full((v, v), 0.02))\n    def forward(self, tokens):\n"
    "        return self.counts[tokens].log()\ndef build(task):\n    return Model(task.vocabulary)\n"
    "def train(model, task, shards):\n    t = torch.from_numpy(shards[0].astype('int64'))\n"
    "    model.counts.index_put_((t[:-1], t[1:]), torch.tensor(1.0), accumulate=True)\n",
    "AdamW": trained("fit(model, task, shards, optimizer=torch.optim.AdamW(model.parameters(), 0.05))"),
    "SGD with momentum": trained(
        "fit(model, task, shards, 60, optimizer=torch.optim.SGD(model.parameters(), 2.0, 0.9))"
    ),
    "averaged weights": trained(
        "average = torch.optim.swa_utils.AveragedModel(model)\n"
        "for _ in range(4):\n    fit(model, task, shards, 15)\n    average.update_parameters(model)\n"
        "return average.module"
    ),
    "orthogonal updates": trained(
        "optimizer = torch.optim.Adam(model.parameters(), 0.05)\n"
        + LOOP
        + "    loss_of(model, inputs, targets).backward()\n    optimizer.step()\n    with torch.no_grad():\n"
        "        u, _, v = torch.linalg.svd(model.head.weight.grad, full_matrices=False)\n"
        "        model.head.weight -= 0.005 * u @ v"
    ),
    "stops by its own clock": trained(
        "until = time.monotonic() + min(0.15, 0.5 * task.budget_seconds)\nwhile time.monotonic() < until:\n"
        "    fit(model, task, shards, 40)\nfit(model, task, shards)"
    ),
    "a thread that prepares batches": "import queue, threading\n"
    + trained(
        "found = queue.Queue()\n"
        "threading.Thread(target=lambda: [found.put(b) for b in [*batches(task, shards, 40), None]]).start()\n"
        "optimizer = torch.optim.Adam(model.parameters(), 0.05)\nwhile (pair := found.get()) is not None:\n"
        "    optimizer.zero_grad()\n    loss_of(model, *pair).backward()\n    optimizer.step()"
    ),
    "a DataLoader with a worker process": trained(
        "loader = torch.utils.data.DataLoader([*batches(task, shards, 40)], batch_size=None, num_workers=1)\n"
        "optimizer = torch.optim.Adam(model.parameters(), 0.05)\nfor pair in loader:\n"
        "    optimizer.zero_grad()\n    loss_of(model, *pair).backward()\n    optimizer.step()"
    ),
    "an idle thread that is left": "import threading\n"
    + trained("threading.Thread(target=threading.Event().wait, daemon=True).start()\nfit(model, task, shards)"),
    "a program that is run": "import subprocess\n"
    + trained("subprocess.run(['true'], check=True)\nfit(model, task, shards)"),
    "a checkpoint in the work folder": trained(
        "fit(model, task, shards)\ntorch.save(model.state_dict(), 'best.pt')\n"
        "model.load_state_dict(torch.load('best.pt'))"
    ),
    "much output": trained("print('x' * 100_000)\nfit(model, task, shards)\nprint('done', file=sys.stderr)"),
    "a new module with the same weights": trained(
        "fit(model, task, shards)\nother = Bigram(task.vocabulary)\nother.load_state_dict(model.state_dict())\n"
        "return other"
    ),
    "a pause": trained("time.sleep(0.05)\nfit(model, task, shards)"),
    "all tokens at once": trained(
        "t = torch.from_numpy(shards[0].astype('int64'))[None]\n"
        "optimizer = torch.optim.Adam(model.parameters(), 0.05)\n"
        "for _ in range(30):\n    optimizer.zero_grad()\n    loss_of(model, t[:, :-1], t[:, 1:]).backward()\n"
        "    optimizer.step()"
    ),
    "half of the data": trained("fit(model, task, [shards[0][: len(shards[0]) // 2]])"),
    "a warm-up of shapes before the clock": "def build(task):\n    model = Bigram(task.vocabulary)\n"
    "    random = torch.randint(task.vocabulary, (4, task.context))\n    loss_of(model, random, random).backward()\n"
    "    model.zero_grad(set_to_none=True)\n    return model\n" + FIT,
    "a long preparation in every process": f"time.sleep(1)\n{PLAIN}{FIT}".replace("):\n", "):\n    time.sleep(1)\n", 1),
}
HONEST = {name: START + code for name, code in HONEST.items()}
