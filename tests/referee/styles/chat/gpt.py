"""A small GPT in the style of a chat model's base training: a config and a model with its own optimizer."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class GPTConfig:
    """Shape of the model."""

    sequence_len: int = 32
    vocab_size: int = 64
    n_layer: int = 2
    n_head: int = 2
    n_embd: int = 32


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=False)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.c_attn(x).view(batch, length, 3, self.n_head, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attn = CausalSelfAttention(config)
        self.norms = nn.ModuleList(nn.RMSNorm(config.n_embd) for _ in range(2))
        self.mlp = nn.Sequential(
            nn.Linear(config.n_embd, 4 * config.n_embd, bias=False),
            nn.GELU(),
            nn.Linear(4 * config.n_embd, config.n_embd, bias=False),
        )

    def forward(self, x):
        x = x + self.attn(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    """Model that returns logits, or the loss if it gets targets."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.sequence_len, config.n_embd)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    def init_weights(self):
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        nn.init.zeros_(self.lm_head.weight)

    def setup_optimizer(self, embedding_lr=0.05, matrix_lr=0.01, weight_decay=0.0):
        matrices = [*self.h.parameters()]
        embeddings = [self.wte.weight, self.wpe.weight, self.lm_head.weight]
        groups = [{"params": embeddings, "lr": embedding_lr}, {"params": matrices, "lr": matrix_lr}]
        for group in groups:
            group["initial_lr"] = group["lr"]
        return torch.optim.AdamW(groups, betas=(0.8, 0.95), weight_decay=weight_decay)

    def forward(self, idx, targets=None, loss_reduction="mean"):
        x = self.wte(idx) + self.wpe.weight[: idx.size(1)]
        for block in self.h:
            x = block(x)
        logits = self.lm_head(x).float()
        if targets is None:
            return logits
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1), reduction=loss_reduction)
