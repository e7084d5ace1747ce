"""The decoder's logits from its weights, in float64, head by head and without any code of the model; and weights or
gradients of transformers' GPT-2 under the decoder's names."""

import math
from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor

from language_model.gpt.settings import GptConfig


def plain_logits(weights: dict[str, Tensor], tokens: Tensor, config: GptConfig) -> Tensor:
    """Return logits (L, outputs) of the row `tokens`, (L,)."""
    w = {name: value.double() for name, value in weights.items()}
    length, size = len(tokens), config.hidden // config.heads

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", torch.tensor(0.0))

    def rms(x: Tensor, epsilon: float) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt()

    def norm(name: str, x: Tensor) -> Tensor:
        if config.normalisation == "rms":
            return rms(x, 1e-6) * w[f"{name}.weight"]
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        return x * w[f"{name}.weight"] + w.get(f"{name}.bias", torch.tensor(0.0))

    def turned(x: Tensor) -> Tensor:
        """Multiply the pairs of a head, as complex numbers, by exp(i position rate)."""
        rates = 10_000 ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        angles = torch.arange(length)[:, None] * rates
        z = torch.complex(x[:, : size // 2], x[:, size // 2 :]) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([z.real, z.imag], 1)

    def activation(x: Tensor) -> Tensor:
        if config.activation == "relu_squared":
            return x.clamp(min=0) ** 2
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    begun = (tokens == config.vocabulary - 1).cumsum(0)
    at = torch.arange(length)
    hidden = at[None] > at[:, None]
    if config.attention_window:
        hidden |= at[:, None] - at[None] >= config.attention_window
    if config.document_attention:
        hidden |= begun[:, None] != begun[None]
    tables = config.value_embeddings
    mixed = {}
    for number, (kept, added) in enumerate(w.get("value_mixture", torch.zeros(0)).view(-1, 2)):
        block = number if number < tables else config.layers - 2 * tables + number
        mixed[block] = kept, added * w[f"value_embeddings.{number % tables}.weight"][tokens]

    x = w["embedding.weight"][tokens]
    if rows := config.bigram_rows:
        row = [rows - 1] + [((36313 * t) ^ (27191 * s)) % (rows - 1) for s, t in pairwise(tokens.tolist())]
        x = x + w["bigrams.weight"][row]
    if config.positions == "learned":
        x = x + w["positions.weight"][:length]
    for number in range(config.layers):
        block = f"blocks.{number}"
        y = norm(f"{block}.attention_norm", x)
        q, k, v = (linear(f"{block}.attention.{part}", y) for part in ("query", "key", "value"))
        if number in mixed:
            v = mixed[number][0] * v + mixed[number][1]
        heads = []
        for rows in torch.arange(config.hidden).split(size):
            a, b = q[:, rows], k[:, rows]
            if config.query_key_norm:
                a, b = rms(a, 1.2e-7), rms(b, 1.2e-7)
            if config.positions == "rotary":
                a, b = turned(a), turned(b)
            heads.append((a @ b.T / math.sqrt(size)).masked_fill(hidden, -math.inf).softmax(-1) @ v[:, rows])
        x = x + linear(f"{block}.attention.projection", torch.cat(heads, 1))
        y = activation(linear(f"{block}.feed_forward.expansion", norm(f"{block}.feed_forward_norm", x)))
        x = x + linear(f"{block}.feed_forward.projection", y)
    logits = norm("norm", x) @ w["embedding.weight" if config.tied_head else "head.weight"].T
    return config.logit_softcap * torch.tanh(logits / config.logit_softcap) if config.logit_softcap else logits


NAMES = {
    "wte": "embedding",
    "wpe": "positions",
    "ln_f": "norm",
    "ln_1": "attention_norm",
    "ln_2": "feed_forward_norm",
    "attn.c_proj": "attention.projection",
    "mlp.c_fc": "feed_forward.expansion",
    "mlp.c_proj": "feed_forward.projection",
}


def in_decoders_names(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights or gradients of transformers' GPT-2, which stores matrices as (inputs, outputs)."""
    tensors = {}
    for name, tensor in theirs.items():
        layer, _, kind = name.rpartition(".")
        block, part = (f"blocks.{layer.split('.')[1]}.", layer.split(".", 2)[2]) if layer[:2] == "h." else ("", layer)
        tensor = tensor.T if kind == "weight" and ".c_" in part else tensor
        if part == "attn.c_attn":
            for projection, piece in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                tensors[f"{block}attention.{projection}.{kind}"] = piece
        else:
            tensors[f"{block}{NAMES[part]}.{kind}"] = tensor
    return tensors
