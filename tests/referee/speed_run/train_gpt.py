"""A small GPT in the style of the speed runs: one file, settings at its top, a model that returns its loss, Muon."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass
class Hyperparameters:
    """Settings of the run."""

    steps: int = 60
    rows: int = 16
    width: int = 32
    heads: int = 2
    layers: int = 2
    cooldown: float = 0.5


def norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.size(-1),))


def orthogonalise(matrix: Tensor) -> Tensor:
    """Newton-Schulz iteration: singular values near 1."""
    x = matrix / (matrix.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonal updates, for matrices."""

    def __init__(self, parameters, lr=0.02, momentum=0.9):
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - group["momentum"])
                p.add_(orthogonalise(buffer), alpha=-group["lr"])


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        nn.init.zeros_(self.out.weight)
        frequencies = (1 / 1024) ** torch.linspace(0, 1, width // heads // 2)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def rotate(self, x: Tensor) -> Tensor:
        angle = torch.outer(torch.arange(x.size(-2)), self.frequencies)
        a, b = x.chunk(2, -1)
        return torch.cat((a * angle.cos() + b * angle.sin(), b * angle.cos() - a * angle.sin()), -1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(self.rotate(norm(q)), self.rotate(norm(k)), v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attention = Attention(width, heads)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(norm(x))
        return x + self.down(self.up(norm(x)).relu().square())


class GPT(nn.Module):
    """Model whose forward pass returns the loss alone, as the speed runs' do."""

    def __init__(self, vocabulary: int, args: Hyperparameters):
        super().__init__()
        padded = -(-vocabulary // 128) * 128
        self.embed = nn.Embedding(padded, args.width)
        self.blocks = nn.ModuleList(Block(args.width, args.heads) for _ in range(args.layers))
        self.lm_head = nn.Linear(args.width, padded, bias=False)
        nn.init.zeros_(self.lm_head.weight)

    def logits(self, inputs: Tensor) -> Tensor:
        x = norm(self.embed(inputs))
        for block in self.blocks:
            x = block(x)
        return 15 * torch.tanh(self.lm_head(norm(x)).float() / 15)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(inputs).flatten(0, 1), targets.flatten())


def data_generator(shards, rows: int, length: int):
    """Yield consecutive pieces of the shards, for ever."""
    while True:
        for shard in shards:
            size = rows * length
            for start in range(0, len(shard) - size, size):
                piece = torch.from_numpy(shard[start : start + size + 1].astype("int64"))
                yield piece[:-1].view(rows, length), piece[1:].view(rows, length)


def run(model: GPT, shards, length: int, args: Hyperparameters) -> None:
    """Train for a fixed number of steps."""
    matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
    optimizers = [torch.optim.Adam([model.embed.weight, model.lm_head.weight], 0.05, (0.8, 0.95)), Muon(matrices)]
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (1 - step / args.steps) / args.cooldown))
        for optimizer in optimizers
    ]
    loader = data_generator(shards, args.rows, length)
    for step in range(args.steps):
        loss = model(*next(loader))
        loss.backward()
        for optimizer in (*optimizers, *schedules):
            optimizer.step()
        model.zero_grad(set_to_none=True)
        if step % 20 == 0:
            print(f"step:{step}/{args.steps} train_loss:{loss.item():.4f}")
