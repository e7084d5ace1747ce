"""Masks of documents and windows on the dense path and as torch's block masks."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from language_model.gpt.attention_mask import allowed_pairs, attend, attention_mask

TOKENS = torch.tensor([[5, 9, 1, 2, 9, 9, 3], [9, 4, 4, 4, 4, 4, 9]])
"""Two rows in which 9 begins a document."""


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("documents", [False, True])
def test_torchs_block_mask_which_a_gpu_takes_allows_the_pairs_of_the_dense_one(window, documents):
    """test_model.py compares the dense mask with a plain formula; on a CPU a block mask has no backward pass."""
    given = None if window is None else torch.tensor(window)
    mask = attention_mask(TOKENS, window=given, end_of_text=9 if documents else None)
    pairs = allowed_pairs(given, (TOKENS == 9).cumsum(1) if documents else None)
    block = create_block_mask(pairs, 2, None, 7, 7, device="cpu")
    inputs = torch.randn(3, 2, 3, 7, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(flex_attention(*inputs, block_mask=block), attend(*inputs, mask, dropout=0.0))
