"""Masks of documents and windows against plain formulas, on the dense path and on torch's block masks."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from language_model.gpt.attention_mask import allowed_pairs, attend, attention_mask, window_at

TOKENS = torch.tensor([[5, 9, 1, 2, 9, 9, 3], [9, 4, 4, 4, 4, 4, 9]])
"""Two rows in which 9 begins a document."""
DOCUMENTS = [["a", "b", "b", "b", "c", "d", "d"], ["a", "a", "a", "a", "a", "a", "b"]]


def expected(window: int | None, documents: bool) -> torch.Tensor:
    """The mask, element by element."""
    rows = torch.zeros(2, 7, 7, dtype=torch.bool)
    for row in range(2):
        for query in range(7):
            for key in range(query + 1):
                near = window is None or query - key < window
                rows[row, query, key] = near and (not documents or DOCUMENTS[row][query] == DOCUMENTS[row][key])
    return rows


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("documents", [False, True])
def test_a_mask_allows_earlier_places_of_the_window_and_the_document(window, documents):
    given = None if window is None else torch.tensor(window)
    mask = attention_mask(TOKENS, window=given, end_of_text=9 if documents else None)
    assert isinstance(mask, torch.Tensor)
    wanted = expected(window, documents)
    assert torch.equal(mask.expand(2, 1, 7, 7)[:, 0], wanted)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 3, 7, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    scores = (query @ key.mT / 2).masked_fill(~wanted[:, None], -torch.inf)
    by_hand = scores.softmax(-1) @ value
    torch.testing.assert_close(attend(query, key, value, mask, dropout=0.0), by_hand)
    # torch's block mask of the same predicate, which a GPU takes; on a CPU it has no backward pass.
    pairs = allowed_pairs(given, (TOKENS == 9).cumsum(1) if documents else None)
    block = create_block_mask(pairs, 2, None, 7, 7, device="cpu")
    query, key, value = (part.float() for part in (query, key, value))
    torch.testing.assert_close(flex_attention(query, key, value, block_mask=block), by_hand.float())


def test_the_window_grows_in_multiples_to_its_final_size():
    grown = [window_at(step, warmup_steps=100, final=250) for step in range(120)]
    assert grown[0] == 64 and grown[100:] == [250] * 20
    assert set(grown) == {64, 128, 192, 250}
    assert grown == sorted(grown)
    assert [grown.index(size) for size in (128, 192)] == [35, 69]  # 64 + 186 * step / 100 passes them there
    assert window_at(0, warmup_steps=0, final=250) == 250
    assert window_at(0, warmup_steps=100, final=30) == 30
