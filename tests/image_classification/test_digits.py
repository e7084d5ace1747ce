"""scikit-learn's digits and their fixed split."""

import numpy as np
import torch

from image_classification import digits


def test_digits_are_split_the_same_way_every_time_and_without_overlap() -> None:
    (train, train_labels), (held_out, labels) = digits.read("train"), digits.read("evaluation")
    assert len(train) + len(held_out) == digits.TOTAL
    assert len(held_out) == digits.EVALUATION == len(labels)
    assert train.dtype == torch.uint8
    assert (int(train.min()), int(train.max())) == (0, 255)
    assert np.bincount(labels).min() > 0.7 * len(labels) / 10
    from sklearn.datasets import load_digits

    together = torch.cat([train, held_out]).flatten(1).sort(0).values
    original = torch.from_numpy(np.rint(load_digits().data * 255 / 16).astype(np.uint8)).sort(0).values
    assert torch.equal(together, original)
    assert torch.equal(digits.read("train")[1], train_labels)
