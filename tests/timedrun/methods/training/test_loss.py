"""Losses against sums written out by hand and PyTorch's own."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.special import expit, log_softmax

from timedrun.methods.training.loss import LOSSES, binary_cross_entropy, cross_entropy, dense_targets

LOGITS = torch.tensor([[2.0, -1.0, 0.5], [0.0, 3.0, -2.0]])
DENSE = torch.tensor([[0.8, 0.1, 0.1], [0.0, 0.25, 0.75]])


def test_cross_entropy_weights_every_class_and_binary_cross_entropy_sums_over_them_per_sample():
    expected = -(DENSE.numpy() * log_softmax(LOGITS.numpy(), axis=1)).sum() / 2
    assert cross_entropy(LOGITS, DENSE).item() == pytest.approx(expected)
    torch.testing.assert_close(cross_entropy(LOGITS, DENSE), F.cross_entropy(LOGITS, DENSE))
    torch.testing.assert_close(cross_entropy(LOGITS, 3 * DENSE), cross_entropy(LOGITS, DENSE))  # rescaled to a sum of 1
    p, t = expit(LOGITS.numpy()), DENSE.numpy()
    expected = -(t * np.log(p) + (1 - t) * np.log(1 - p)).sum() / 2
    assert binary_cross_entropy(LOGITS, DENSE).item() == pytest.approx(expected, rel=1e-5)
    mean = F.binary_cross_entropy_with_logits(LOGITS, DENSE)
    torch.testing.assert_close(binary_cross_entropy(LOGITS, DENSE), 3 * mean)
    torch.testing.assert_close(LOSSES["mean_binary_cross_entropy"](LOGITS, DENSE), mean)
    multi_label = F.binary_cross_entropy_with_logits(LOGITS, torch.tensor([[1.0, 0, 0], [0, 1, 1]]), reduction="none")
    torch.testing.assert_close(LOSSES["multi_label_binary_cross_entropy"](LOGITS, DENSE), multi_label.mean())


@pytest.mark.parametrize(
    ("loss", "a_class"), [(cross_entropy, math.log(4096)), (binary_cross_entropy, 4096 * math.log(2))]
)
def test_indices_equal_one_hot_targets_and_half_precision_is_summed_in_float32(loss, a_class):
    labels = torch.tensor([1, 2])
    torch.testing.assert_close(loss(LOGITS, labels), loss(LOGITS, F.one_hot(labels, 3).float()))
    value = loss(torch.zeros(4, 4096, dtype=torch.float16), torch.zeros(4, dtype=torch.int64))
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(a_class, rel=1e-5)


@pytest.mark.parametrize(
    "targets", [torch.zeros(2, 5), torch.zeros(2), torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3, 1)]
)
def test_targets_of_another_shape_or_beyond_the_last_class_are_refused(targets):
    with pytest.raises(ValueError, match="class indices"):
        dense_targets(targets, 3)
    with pytest.raises(ValueError, match="class indices from 0 to 2, not 1 to 3"):
        dense_targets(torch.tensor([1, 3]), 3)
