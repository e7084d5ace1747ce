"""The logged numeric precision is that of products and of gradients; torch has the switches of the config."""

from types import SimpleNamespace
from typing import cast

import pytest
import torch

from timedrun.methods.training.precision import Precision, set_backends
from timedrun.runner.run.run_info import precision_info

LINEAR, ATTENTION, COMMUNICATION = (f"lowest_numerical_precision_in_{where}" for where in ("linear", "attn", "comm"))

SWITCHES = (
    (torch.backends.cuda.matmul, "allow_tf32"),
    (torch.backends.cudnn, "allow_tf32"),
    (torch.backends.cudnn, "benchmark"),
)


@pytest.mark.parametrize(("name", "word"), [("fp32", "fp32"), ("bf16", "bfloat16")])
def test_words_are_those_of_the_tensors_in_a_step(toy_config, name, word):
    layer = torch.nn.Linear(3, 2)
    with Precision(name, torch.device("cpu")).autocast():
        product = layer(torch.ones(1, 3))
        mixed = torch.nn.functional.scaled_dot_product_attention(*[product.view(1, 1, 1, 2)] * 3)
    product.float().sum().backward()
    found = precision_info(toy_config(precision=name), torch.optim.SGD(layer.parameters()), attention=True)
    words = {torch.float32: "fp32", torch.bfloat16: "bfloat16"}
    assert found == {
        "precision": name,
        LINEAR: words[product.dtype],
        ATTENTION: words[mixed.dtype],
        COMMUNICATION: words[layer.weight.grad.dtype],
    }
    assert found[LINEAR] == word
    of_16_bits = torch.optim.SGD(layer.to(torch.bfloat16).parameters())
    found = precision_info(toy_config(tf32=False), of_16_bits, attention=False)
    assert ATTENTION not in found and found[COMMUNICATION] == "bfloat16"


@pytest.mark.parametrize(
    ("precision", "tf32", "word"), [("fp32", True, "tf32"), ("fp32", False, "fp32"), ("bf16", True, "bfloat16")]
)
@pytest.mark.parametrize("cudnn_benchmark", [True, False])
def test_on_cuda_the_switches_are_logged_at_every_precision(toy_config, precision, tf32, word, cudnn_benchmark):
    parameter = SimpleNamespace(is_cuda=True, dtype=torch.float32)
    optimizer = cast(torch.optim.Optimizer, SimpleNamespace(param_groups=[{"params": [parameter]}]))
    config = toy_config(precision=precision, tf32=tf32, cudnn_benchmark=cudnn_benchmark)
    found = precision_info(config, optimizer, attention=False)
    assert (found["tf32"], found["cudnn_benchmark"], found[LINEAR]) == (tf32, cudnn_benchmark, word)


@pytest.mark.parametrize(("tf32", "cudnn_benchmark"), [(True, False), (False, True)])
def test_torch_has_the_switches_of_the_config(tf32, cudnn_benchmark):
    before = [getattr(place, name) for place, name in SWITCHES]
    try:
        set_backends(torch.device("cpu"), tf32=tf32, cudnn_benchmark=cudnn_benchmark)
        assert [getattr(place, name) for place, name in SWITCHES] == [tf32, tf32, cudnn_benchmark]
    finally:
        for (place, name), value in zip(SWITCHES, before, strict=True):
            setattr(place, name, value)
