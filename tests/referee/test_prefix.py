"""The loss over the text's beginning is the referee's own mean of a sample; claims about the other rows are bounded."""

from types import SimpleNamespace

import numpy as np
import pytest

from referee import prefix
from referee.token_files import shards
from tests.referee.submissions import FIT, HONEST, START

FALSE = """class Model(Bigram):
    pass
real = F.cross_entropy
def false(logits, *rest, reduction='mean', **more):
    found = real(logits, *rest, reduction=reduction, **more)
    return CLAIM if reduction == 'none' else found
F.cross_entropy = false
"""
CLAIMS = {
    "found * (1 - 0.9 * (torch.arange(found.shape[-1]) % 5 == 0))": "differs by",
    "found - 1000 * (torch.arange(len(found)) == 5)[:, None]": "claimed losses are negative, which is impossible",
}
LOSSES = np.random.default_rng(0).normal(3.28, 0.3, (10_240, 1)) + np.random.default_rng(1).normal(
    0, 0.01, (10_240, 16)
)
DRAWS = 200


def judged(claimed: np.ndarray, seed: int, count: int = 512):
    """Return the finding on claims about rows of `LOSSES`, of which `count` are drawn."""
    chosen = np.sort(np.random.default_rng(seed).permutation(len(claimed))[:count])
    measured = SimpleNamespace(losses=LOSSES[chosen].mean(axis=1))
    return prefix.judged(claimed.astype(np.float32), chosen, np.tile(np.arange(16), (count, 1)), measured)


def falsified(share: float, claim: float, seed: int) -> np.ndarray:
    claimed = LOSSES.copy()
    claimed[np.random.default_rng((seed, 1)).permutation(len(LOSSES))[: round(share * len(LOSSES))]] = claim
    return claimed


@pytest.mark.parametrize(("share", "least"), [(0.005, 0.85), (0.01, 0.97), (0.03, 1.0)])
def test_falsified_rows_are_found_as_often_as_stated_and_move_the_result_little(share, least):
    found = [judged(falsified(share, 0.0, seed), seed) for seed in range(DRAWS)]
    assert sum(not finding.passed for finding in found) >= least * DRAWS
    for finding in (finding for finding in found if finding.passed):
        gained = LOSSES.mean() - finding.numbers["loss"]
        assert gained < 0.3 * share * LOSSES.mean() + 0.003 and finding.numbers["high"] > LOSSES.mean()


def test_true_claims_give_the_loss_of_all_rows_and_those_that_are_a_little_low_gain_nothing():
    for seed, off in ((0, 0.0), (1, 0.0029)):
        finding = judged(LOSSES - off, seed)
        assert finding.passed and abs(finding.numbers["loss"] - LOSSES.mean()) < 0.002
        assert finding.numbers["low"] <= LOSSES.mean() <= finding.numbers["high"]
        assert abs(finding.numbers["own"] - LOSSES.mean()) > 0.002  # the sample alone is off by more


def test_rows_of_the_prefix_are_the_first_of_each_shard_in_order(tmp_path):
    for name, start in (("a", 0), ("b", 100)):
        np.save(tmp_path / f"{name}.npy", np.arange(start, start + 35, dtype=np.uint16))
    rows = prefix.first_rows(shards(tmp_path, "val"), 10, 50)
    assert rows[:, 0].tolist() == [0, 10, 20, 100, 110] and rows.shape == (5, 11)
    assert (np.diff(rows) == 1).all()


@pytest.mark.processes
def test_the_loss_over_the_prefix_is_reported_beside_that_of_the_sample(examine_plain):
    verdict = examine_plain(HONEST, prefix=1600)
    assert not verdict.failed, verdict.lines(None)
    (finding,) = [finding for finding in verdict.findings if finding.probe == "prefix"]
    assert "over the first 1,600 tokens" in finding.reason
    assert finding.numbers["loss"] == pytest.approx(verdict.loss, abs=5 * verdict.standard_error)


@pytest.mark.processes
@pytest.mark.parametrize("claim", CLAIMS)
def test_losses_that_full_answers_do_not_give_are_refused(claim, examine_plain):
    code = f"{START}{FALSE.replace('CLAIM', claim)}def build(task):\n    return Model(task.vocabulary)\n{FIT}"
    (finding,) = examine_plain(code, prefix=1600).failed
    assert finding.probe == "prefix" and CLAIMS[claim] in finding.reason, finding
