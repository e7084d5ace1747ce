"""Train a small GPT-2 on the Zen of Python with methods in a loop of torchtitan's shape: fully_shard, micro-batches."""

import codecs
import contextlib
import io
from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.fsdp import fully_shard

from timedrun.methods import EMA, SAM, ALiBi, GradientClipping, SequenceLengthWarmup, stack
from timedrun.methods.integrations import fitting_torchvision

with fitting_torchvision():
    from transformers import GPT2Config, GPT2LMHeadModel

LENGTH, STEPS, MICRO_BATCHES = 64, 40, 2


class Trainer:
    def __init__(self) -> None:
        self.step = 0
        self.methods = stack(
            ALiBi(train_sequence_length_scaling=1.0),
            SequenceLengthWarmup(steps=STEPS, duration=0.5, min_length=16, max_length=LENGTH),
            SAM(rho=0.05, interval=10),
            GradientClipping(threshold=1.0),
            EMA(half_life=5, update_interval=1),
        )
        shape = {"vocab_size": 256, "n_positions": LENGTH, "n_embd": 64, "n_layer": 2, "n_head": 4}
        network = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=None, eos_token_id=None))
        self.model = self.methods.model(network)  # before it is sharded
        for block in self.model.transformer.h:
            fully_shard(block)
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.rate = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1.0)

    def forward_backward_step(self, tokens: Tensor, labels: Tensor) -> Tensor:
        loss = F.cross_entropy(self.model(tokens).logits.flatten(0, 1), labels.flatten()) / MICRO_BATCHES
        loss.backward()
        return loss.detach()

    def train_step(self, batches: Iterator[tuple[Tensor, Tensor]]) -> Tensor:
        self.optimizer.zero_grad()
        self.methods.before_step(self.model, self.step, self.step / STEPS)
        micro = [self.methods.batch(*next(batches), 256) for _ in range(MICRO_BATCHES)]

        def compute(reduced: bool) -> Tensor:
            return torch.stack([self.forward_backward_step(*pieces) for pieces in micro]).sum()

        loss = self.methods.backward(compute, self.model)
        self.methods.gradients(self.model)
        self.optimizer.step()
        self.rate.step()
        self.methods.after_step(self.model)
        self.step += 1
        return loss


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    with contextlib.redirect_stdout(io.StringIO()):
        import this
    text = torch.tensor(list(codecs.decode(this.s, "rot13").encode()))
    rows = text.unfold(0, LENGTH + 1, 1)
    while True:
        chosen = rows[torch.randint(len(rows), (8,))]
        yield chosen[:, :-1], chosen[:, 1:]


def main() -> None:
    torch.manual_seed(0)
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    trainer, data = Trainer(), batches()
    for _ in range(STEPS):
        trainer.train_step(data)
    trainer.methods.verify()
    print(*trainer.methods.report, sep="\n")
    trainer.model.eval()
    tokens, labels = next(data)
    with trainer.methods.evaluation(trainer.model), torch.no_grad():
        loss = F.cross_entropy(trainer.model(tokens).logits.flatten(0, 1), labels.flatten()).item()
    print(f"loss of the averaged weights {loss:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
