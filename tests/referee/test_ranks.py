"""A training in several ranks, as torchrun starts them, ends with rank 0's weights or with the first error of any."""

import pytest

from tests.referee.submissions import PLAIN, START

pytestmark = pytest.mark.processes
LAUNCHED = f"""{START}import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
RANK, RANKS = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
dist.init_process_group('gloo')
assert dist.is_torchelastic_launched() and dist.get_world_size() == RANKS
{PLAIN}
def train(model, task, shards):
    RANK_BODY
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for inputs, targets in batches(task, shards, 40):
        optimizer.zero_grad()
        loss_of(wrapped, inputs[RANK::RANKS], targets[RANK::RANKS]).backward()
        optimizer.step()
    print('rank', RANK, 'of', RANKS, flush=True)
"""


def test_ranks_train_one_model_over_gloo(examine):
    verdict = examine(LAUNCHED.replace("RANK_BODY", "assert RANKS == 2"), ranks=2)
    assert not verdict.failed, (verdict.lines(None), verdict.output)
    assert verdict.loss < 2.6


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("if RANK == 1: raise ValueError('planned')", "rank 1: ValueError: planned (submission.py:"),
        ("if RANK == 1: os._exit(3)", "rank 1 ended without a result"),
        ("if RANK == 0: os.kill(os.getpid(), 9)", "rank 0 ended without a result"),
    ],
)
def test_the_first_error_of_any_rank_ends_a_training(body, reason, examine):
    (finding,) = examine(LAUNCHED.replace("RANK_BODY", body), ranks=2).failed
    assert (finding.probe, reason in finding.reason) == ("training", True), finding
