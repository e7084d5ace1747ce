"""Label smoothing: dense targets from indices and from dense targets."""

import torch
import torch.nn.functional as F

from timedrun.methods import LabelSmoothing
from timedrun.methods.label_smoothing import smoothed
from timedrun.methods.method import Position


def test_cross_entropy_on_smoothed_targets_is_what_torch_calls_label_smoothing() -> None:
    logits, labels = torch.randn(6, 5), torch.randint(5, (6,))
    expected = F.cross_entropy(logits, labels, label_smoothing=0.2)
    torch.testing.assert_close(F.cross_entropy(logits, smoothed(labels, 0.2, 5)), expected)


def test_dense_targets_are_mixed_with_the_uniform() -> None:
    dense = torch.tensor([[0.3, 0.7], [1.0, 0.0]])
    torch.testing.assert_close(smoothed(dense, 0.1, 2), torch.tensor([[0.32, 0.68], [0.95, 0.05]]))
    assert dense[1, 0] == 1  # the caller's targets are not changed


def test_only_targets_change_and_the_effect_is_counted() -> None:
    hooks = LabelSmoothing(smoothing=0.1).hooks()
    images, labels = torch.randn(2, 3), torch.tensor([1, 0])
    inputs, targets = hooks.batch(images, labels, Position(0, 0.5), 4)
    assert inputs is images
    assert targets.shape == (2, 4) and targets.dtype == torch.float32
    assert hooks.effect() == "1 batches of targets smoothed by 0.1"
