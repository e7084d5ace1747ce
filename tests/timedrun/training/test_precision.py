"""The logged numeric precision is that of products and of gradients."""

from typing import Any

import pytest
import torch

from timedrun.training.precision import Precision, precision_info

LINEAR, ATTENTION, COMMUNICATION = (f"lowest_numerical_precision_in_{where}" for where in ("linear", "attn", "comm"))


@pytest.mark.parametrize(("name", "word"), [("fp32", "fp32"), ("bf16", "bfloat16")])
def test_words_are_those_of_the_tensors_in_a_step(name: Any, word: str) -> None:
    layer = torch.nn.Linear(3, 2)
    with Precision(name, torch.device("cpu")).autocast():
        product = layer(torch.ones(1, 3))
        mixed = torch.nn.functional.scaled_dot_product_attention(*[product.view(1, 1, 1, 2)] * 3)
    product.float().sum().backward()
    found = precision_info(name, torch.optim.SGD(layer.parameters()), attention=True, tf32=True)
    words = {torch.float32: "fp32", torch.bfloat16: "bfloat16"}
    assert found == {
        "precision": name,
        LINEAR: words[product.dtype],
        ATTENTION: words[mixed.dtype],
        COMMUNICATION: words[layer.weight.grad.dtype],  # type: ignore[union-attr]
    }
    assert found[LINEAR] == word


def test_a_model_without_attention_has_no_precision_of_it_and_16_bit_parameters_are_reduced_in_16_bits() -> None:
    layer = torch.nn.Linear(3, 2).to(torch.bfloat16)
    found = precision_info("fp32", torch.optim.SGD(layer.parameters()), attention=False, tf32=False)
    assert ATTENTION not in found and found[COMMUNICATION] == "bfloat16"
