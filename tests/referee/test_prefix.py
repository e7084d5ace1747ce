"""The loss over the beginning of the validation text is computed by the session and held to full answers."""

import numpy as np
import pytest

from referee.probes import first_rows
from referee.token_files import shards
from tests.referee.submissions import FIT, HONEST, START

pytestmark = pytest.mark.processes
LIES = """class Model(Bigram):
    pass
real = F.cross_entropy
def lies(logits, *rest, reduction='mean', **more):
    found = real(logits, *rest, reduction=reduction, **more)
    return found * (1 - 0.9 * (torch.arange(found.shape[-1]) % 5 == 0)) if reduction == 'none' else found
F.cross_entropy = lies
"""
BODY = f"def build(task):\n    return Model(task.vocabulary)\n{FIT}"


def test_rows_of_the_prefix_are_the_first_of_each_shard_in_order(tmp_path):
    for name, start in (("a", 0), ("b", 100)):
        np.save(tmp_path / f"{name}.npy", np.arange(start, start + 35, dtype=np.uint16))
    rows = first_rows(shards(tmp_path, "val"), 10, 50)
    assert rows[:, 0].tolist() == [0, 10, 20, 100, 110] and rows.shape == (5, 11)
    assert (np.diff(rows) == 1).all()


def test_the_loss_over_the_prefix_is_reported_beside_that_of_the_sample(examine):
    verdict = examine(HONEST, prefix=1600)
    assert not verdict.failed, verdict.lines(None)
    (finding,) = [finding for finding in verdict.findings if finding.probe == "prefix"]
    assert "over the first 1,600 tokens" in finding.reason
    assert finding.numbers["loss"] == pytest.approx(verdict.loss, abs=5 * verdict.standard_error)


def test_losses_that_full_answers_do_not_give_are_refused(examine):
    (finding,) = examine(f"{START}{LIES}{BODY}", prefix=1600).failed
    assert finding.probe == "prefix", finding
