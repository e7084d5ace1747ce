"""Honest submissions of unusual kinds: code of submission.py by name."""

from tests.referee.submissions import PLAIN, START, model, trained

STEPS = "for inputs, targets in batches(task, shards, 40):\n"
GROUP = "import torch.distributed as dist\n"
TWO_RANKS = f"""{GROUP}{PLAIN}
def work(rank, model, task, shards):
    dist.init_process_group('gloo', init_method='tcp://127.0.0.1:29512', rank=rank, world_size=2)
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for inputs, targets in batches(task, shards, 40):
        loss_of(model, inputs[rank::2], targets[rank::2]).backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        torch.save(model.state_dict(), 'rank0.pt')
    dist.destroy_process_group()


def train(model, task, shards):
    children = []
    for rank in range(2):
        if (child := os.fork()) == 0:
            work(rank, model, task, shards)
            os._exit(0)
        children.append(child)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    model.load_state_dict(torch.load('rank0.pt'))
"""
UNUSUAL = {
    "several optimizers": trained(
        "optimizers = [torch.optim.Adam(model.embedding.parameters(), 0.05),"
        " torch.optim.SGD(model.head.parameters(), 1.0, 0.9)]\n"
        + STEPS + "    loss_of(model, inputs, targets).backward()\n"
        "    for optimizer in optimizers:\n        optimizer.step()\n        optimizer.zero_grad()"
    ),
    "a process group of one rank by its environment": GROUP
    + trained(
        "os.environ.update(MASTER_ADDR='localhost', MASTER_PORT='29511', RANK='0', WORLD_SIZE='1')\n"
        "dist.init_process_group('gloo')\nwrapped = nn.parallel.DistributedDataParallel(model)\n"
        "fit(wrapped, task, shards)\ndist.destroy_process_group()"
    ),
    "two processes over gloo": TWO_RANKS,
    "tables of its own tokenizer, by frequency": model(
        "def __init__(self, v):\n    super().__init__(v)\n    self.register_buffer('rank', torch.arange(v))\n"
        "def features(self, tokens):\n    return self.embedding(self.rank[tokens])"
    ).replace("    fit(model", "    t = torch.from_numpy(shards[0].astype('int64'))\n"
              "    order = t.bincount(minlength=64).argsort(descending=True, stable=True)\n"
              "    model.rank.copy_(order.argsort())\n    fit(model"),
    "accumulated gradients": trained(
        "optimizer = torch.optim.Adam(model.parameters(), 0.05)\n" + STEPS
        + "    for part in range(4):\n        (loss_of(model, inputs[part::4], targets[part::4]) / 4).backward()\n"
        "    optimizer.step()\n    optimizer.zero_grad()"
    ),
    "two models, mixed": "class Both(nn.Module):\n    def __init__(self, v):\n        super().__init__()\n"
    "        self.parts = nn.ModuleList([Bigram(v, 16), Bigram(v, 48)])\n    def forward(self, tokens):\n"
    "        return torch.logsumexp(torch.stack([part(tokens).log_softmax(-1) for part in self.parts]), 0)\n"
    "def build(task):\n    return Both(task.vocabulary)\n"
    "def train(model, task, shards):\n    for part in model.parts:\n        fit(part, task, shards)\n",
    "exponential moving average of its weights": trained(
        "import copy\naverage = copy.deepcopy(model)\noptimizer = torch.optim.Adam(model.parameters(), 0.05)\n" + STEPS
        + "    loss_of(model, inputs, targets).backward()\n    optimizer.step()\n    optimizer.zero_grad()\n"
        "    with torch.no_grad():\n"
        "        for a, b in zip(average.parameters(), model.parameters()): a.lerp_(b, 0.2)\n"
        "return average"
    ),
    "threads that share the weights": "from concurrent.futures import ThreadPoolExecutor\n"
    + trained(
        "import copy\ndef step(pair):\n    own = copy.deepcopy(model)\n    loss_of(own, *pair).backward()\n"
        "    with torch.no_grad():\n"
        "        for a, b in zip(model.parameters(), own.parameters()): a -= 2 * b.grad\n"
        "with ThreadPoolExecutor(3) as pool:\n    list(pool.map(step, batches(task, shards, 120)))"
    ),
    "NumPy alone, pairs and triples": "import numpy as np\nclass Counts(nn.Module):\n    def __init__(self, v):\n"
    "        super().__init__()\n        self.v = v\n        self.register_buffer('pairs', torch.ones(v, v) / v)\n"
    "    def forward(self, tokens):\n        return self.pairs[tokens].log()\n"
    "def build(task):\n    return Counts(task.vocabulary)\n"
    "def train(model, task, shards):\n    v, t = model.v, np.asarray(shards[0], dtype=np.int64)\n"
    "    table = np.bincount(t[:-1] * v + t[1:], minlength=v * v).reshape(v, v) + 0.05\n"
    "    model.pairs.copy_(torch.from_numpy(table / table.sum(1, keepdims=True)))\n",
    "L-BFGS with a closure": trained(
        "t = torch.from_numpy(shards[0].astype('int64'))[None]\n"
        "optimizer = torch.optim.LBFGS(model.parameters(), max_iter=25, line_search_fn='strong_wolfe')\n"
        "def closure():\n    optimizer.zero_grad()\n    loss = loss_of(model, t[:, :-1], t[:, 1:])\n"
        "    loss.backward()\n    return loss\noptimizer.step(closure)"
    ),
    "sparse gradients of the embedding": "class Sparse(Bigram):\n    def __init__(self, v):\n"
    "        super().__init__(v)\n        self.embedding = nn.Embedding(v, 32, sparse=True)\n"
    "def build(task):\n    return Sparse(task.vocabulary)\n"
    "def train(model, task, shards):\n    optimizers = [torch.optim.SparseAdam([model.embedding.weight], 0.05),"
    " torch.optim.Adam(model.head.parameters(), 0.05)]\n    " + STEPS
    + "        loss_of(model, inputs, targets).backward()\n        for optimizer in optimizers:\n"
    "            optimizer.step()\n            optimizer.zero_grad()\n",
    "TorchScript": PLAIN + "def train(model, task, shards):\n"
    "    scripted = torch.jit.trace(model, torch.zeros(2, 32).long())\n"
    "    fit(scripted, task, shards)\n    model.load_state_dict(scripted.state_dict())\n",
    "gradients of functions": trained(
        "from torch.func import functional_call, grad\nweights = {n: p.detach() for n, p in model.named_parameters()}\n"
        "def loss(weights, inputs, targets):\n    logits = functional_call(model, weights, inputs)\n"
        "    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())\n"
        "for inputs, targets in batches(task, shards, 150):\n    found = grad(loss)(weights, inputs, targets)\n"
        "    weights = {name: weights[name] - 4 * found[name] for name in weights}\n"
        "model.load_state_dict(weights)"
    ),
    "recomputed activations": model(
        "def features(self, tokens):\n    from torch.utils.checkpoint import checkpoint\n"
        "    return checkpoint(self.embedding, tokens, use_reentrant=False)"
    ),
    "rows that grow longer": trained(
        "optimizer = torch.optim.Adam(model.parameters(), 0.05)\n"
        "for number, (inputs, targets) in enumerate(batches(task, shards, 40)):\n    n = 4 + number * 28 // 39\n"
        "    loss_of(model, inputs[:, :n], targets[:, :n]).backward()\n    optimizer.step()\n    optimizer.zero_grad()"
    ),
    "a temperature found on its own held-out text": model(
        "def __init__(self, v):\n    super().__init__(v)\n    self.heat = nn.Parameter(torch.ones(()))\n"
        "def forward(self, tokens):\n    return super().forward(tokens) / self.heat"
    ).replace("    fit(model, task, shards, 40)",
              "    held = shards[0][-500:]\n    fit(model, task, [shards[0][:-500]], 40)\n"
              "    t = torch.from_numpy(held.astype('int64'))[None]\n"
              "    with torch.no_grad():\n        losses = {}\n        for heat in (0.8, 1.0, 1.25):\n"
              "            model.heat.fill_(heat)\n"
              "            losses[heat] = loss_of(model, t[:, :-1], t[:, 1:]).item()\n"
              "        model.heat.fill_(min(losses, key=losses.get))"),
    "its own copy of the text on disk": "import numpy as np\n"
    + trained(
        "np.save('text.npy', np.concatenate(shards))\nfit(model, task, [np.load('text.npy', mmap_mode='r')])"
    ),
    "an asynchronous reader and a log": "import asyncio, logging\nlogging.basicConfig(filename='log.txt')\n"
    + trained(
        "async def run():\n    for pair in batches(task, shards, 2):\n        await asyncio.sleep(0)\n"
        "        logging.error('read')\n"
        "asyncio.run(run())\nfit(model, task, shards)"
    ),
}  # fmt: skip
UNUSUAL = {name: START + code for name, code in UNUSUAL.items()}
