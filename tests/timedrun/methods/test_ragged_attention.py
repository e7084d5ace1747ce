"""Attention backends compute softmax attention within each sequence only; selection of a backend."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from judging.ground.errors import UsageError
from language_model.collator import MaskedBatch, collate
from language_model.text.store import MaskedSequences
from timedrun.methods.ragged_attention import AUTO, BACKENDS, boundaries, choose

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
ON_CPU = ("eager", "sdpa_padded", "sdpa_grouped", "sdpa_loop")


def layout(lengths: list[int], longest: int, padded: bool) -> MaskedBatch:
    """Return a batch of zeros with the layout of these sequences."""
    none = np.zeros(0, np.int64)
    zeros = MaskedSequences(np.zeros(sum(lengths), np.int64), np.array(lengths), np.array(lengths), none, none)
    batch = collate(zeros, longest=longest, padded=padded, global_samples=len(lengths), global_masked=0)
    return replace(batch, row_multiple=32)


def inputs(rows: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, 2, 8, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3)]


def true_rows(plan: MaskedBatch) -> list[slice]:
    starts, lengths = plan.offsets[:-1].tolist(), plan.lengths.tolist()
    return [slice(start, start + length) for start, length in zip(starts, lengths, strict=True)]


def written_out(q: Tensor, k: Tensor, v: Tensor, rows: slice) -> Tensor:
    """softmax(q k^T / sqrt(d)) v for the heads of one sequence (Vaswani et al. 2017, equation 1)."""
    q, k, v = (x[rows].transpose(0, 1) for x in (q, k, v))
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[2])
    weights = scores.exp() / scores.exp().sum(2, keepdim=True)
    return (weights @ v).transpose(0, 1)


@pytest.mark.parametrize("name", ON_CPU)
@given(data=st.data(), padded=st.booleans())
@settings(max_examples=12)
def test_each_sequence_attends_to_itself_only_forward_and_back(name, data, padded):
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=7))
    lengths += [] if padded else data.draw(st.lists(st.just(0), max_size=2))
    plan = layout(lengths, 9, padded)
    own, plain = inputs(plan.tokens.numel()), inputs(plan.tokens.numel())
    output = BACKENDS[name](plan)(*own, 0.0)
    assert output.shape == own[0].shape and output.isfinite().all()
    expected = torch.cat([written_out(*plain, rows) for rows in true_rows(plan)])
    used = torch.cat([output[rows] for rows in true_rows(plan)])
    torch.testing.assert_close(used, expected, rtol=1e-9, atol=1e-12)
    used.square().sum().backward()
    expected.square().sum().backward()
    for x, y in zip(own, plain, strict=True):
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ON_CPU)
def test_dropout_drops_attention_and_keeps_its_mean(name):
    plan = layout([9, 5, 9], 9, padded=False)
    q, k, v = inputs(plan.tokens.numel())
    torch.manual_seed(0)
    attend = BACKENDS[name](plan)
    with torch.no_grad():
        outputs = torch.stack([attend(q, k, v, 0.25) for _ in range(600)])
    assert not torch.equal(outputs[0], outputs[1])
    error = outputs.std(0) / math.sqrt(len(outputs))
    assert ((outputs.mean(0) - attend(q, k, v, 0.0)).abs() < 5.5 * error + 1e-9).all()


def test_kernels_get_every_row_in_exactly_one_piece():
    cuts = boundaries(layout([4, 2, 0, 3], 6, padded=False))
    assert cuts.dtype == torch.int32 and cuts.tolist() == [0, 4, 6, 6, 9]
    assert boundaries(layout([4, 2], 6, padded=True)).tolist() == [0, 4, 6, 8, 12]


def test_auto_selects_an_available_backend_on_gpus_varlen_but_not_with_dropout(monkeypatch):
    assert choose(AUTO, CPU, torch.float32) == "sdpa_grouped"
    assert choose(AUTO, CPU, torch.bfloat16, 0.1) == "sdpa_grouped"
    assert choose(AUTO, CUDA, torch.float32) == "sdpa_padded"  # flash kernels are 16-bit
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    with pytest.raises(UsageError, match="does not support dropout; the model has 0.1"):
        choose("varlen", CUDA, torch.bfloat16, 0.1)
    monkeypatch.setattr("timedrun.methods.ragged_attention.importable", lambda module: False)
    assert choose(AUTO, CUDA, torch.bfloat16) == "varlen"
    assert choose(AUTO, CUDA, torch.bfloat16, 0.1) == "sdpa_padded"
    monkeypatch.setattr("timedrun.methods.ragged_attention.importable", lambda module: True)
    assert choose(AUTO, CUDA, torch.float16, 0.1) == "flash_attn"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    assert choose(AUTO, CUDA, torch.float16) == "sdpa_padded"


@pytest.mark.parametrize(
    ("name", "device", "dtype", "words"),
    [
        ("varlen", CPU, torch.bfloat16, "needs a CUDA device; the model is on cpu. Use 'sdpa_grouped'"),
        ("flash_attn", CPU, torch.bfloat16, "needs a CUDA device"),
        ("varlen", CUDA, torch.float32, "the precision is float32. Use 'sdpa_padded'"),
        ("sdpa_grouped", CUDA, torch.float32, "reads lengths on the host"),
        ("flash", CPU, torch.float32, "unknown attention 'flash'; choose from auto, eager"),
    ],
)
def test_an_unavailable_backend_is_an_error_with_reason_and_alternative(name, device, dtype, words):
    with pytest.raises(UsageError, match=words):
        choose(name, device, dtype)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["varlen", "flash_attn", "sdpa_padded", "eager"])
@pytest.mark.parametrize("padded", [False, True])
def test_gpu_kernels_agree_with_the_formula(name, padded):
    try:
        choose(name, CUDA, torch.bfloat16)
    except UsageError as error:
        pytest.skip(str(error))
    plan = layout([200, 64, 3, 177], 200, padded)
    q, k, v = (torch.randn(plan.tokens.numel(), 4, 64) for _ in range(3))
    output = BACKENDS[name](plan.to(CUDA))(*(x.to(CUDA, torch.bfloat16) for x in (q, k, v)), 0.0)
    assert output.isfinite().all()
    for rows in true_rows(plan):
        torch.testing.assert_close(output[rows].cpu().float(), written_out(q, k, v, rows), rtol=0.03, atol=0.03)
