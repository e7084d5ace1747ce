"""Weights or gradients of transformers' GPT-2 under the names of the decoder."""

import torch

from language_model.gpt.model import Decoder, Gpt2


@torch.no_grad()
def copy_from_transformers(theirs: Gpt2, ours: Decoder, *, gradients: bool = False) -> None:
    """Copy the weights of `theirs`, or their gradients, to `ours`. GPT-2 stores matrices as (inputs, outputs)."""

    def copy(target: torch.nn.Parameter, source: torch.Tensor) -> None:
        if gradients:
            target.grad = source.clone()
        else:
            target.copy_(source)

    parameters = dict(theirs.gpt2.transformer.named_parameters())
    found = {name: parameter.grad if gradients else parameter for name, parameter in parameters.items()}
    assert ours.positions is not None
    copy(ours.embedding.weight, found["wte.weight"])
    copy(ours.positions.weight, found["wpe.weight"])
    for kind in ("weight", "bias"):
        copy(getattr(ours.norm, kind), found[f"ln_f.{kind}"])
        for number, block in enumerate(ours.blocks):
            stem = f"h.{number}"
            copy(getattr(block.attention_norm, kind), found[f"{stem}.ln_1.{kind}"])
            copy(getattr(block.feed_forward_norm, kind), found[f"{stem}.ln_2.{kind}"])
            fused = found[f"{stem}.attn.c_attn.{kind}"].chunk(3, dim=-1)
            attention, inner = block.attention, block.feed_forward
            for layer, part in zip((attention.query, attention.key, attention.value), fused, strict=True):
                copy(getattr(layer, kind), part.T if kind == "weight" else part)
            for layer, name in (
                (attention.projection, "attn.c_proj"),
                (inner.expansion, "mlp.c_fc"),
                (inner.projection, "mlp.c_proj"),
            ):
                part = found[f"{stem}.{name}.{kind}"]
                copy(getattr(layer, kind), part.T if kind == "weight" else part)
