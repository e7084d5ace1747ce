"""DistributedDataParallel as a run sets it up: gradients in its buckets, of a size that lets communication overlap."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from image_classification.model import RESNET50, RESNET101, build_model
from language_model.encoder import Bert
from language_model.settings import BERT_LARGE
from timedrun.distributed.process_group import ProcessGroup, bucket_megabytes


@pytest.fixture
def first_of_two() -> Iterator[ProcessGroup]:
    """Rank 0 of a run of two, in a gloo group of itself alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield ProcessGroup(0, 2, 0, torch.device("cpu"))
    dist.destroy_process_group()


def test_gradients_are_views_of_the_buckets(first_of_two):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    parallel = first_of_two.wrap(model)
    assert isinstance(parallel, DistributedDataParallel)
    for _ in range(2):  # the buckets are made anew after the first backward pass
        model.zero_grad(set_to_none=True)
        parallel(torch.ones(1, 3)).sum().backward()
    assert len({p.grad.untyped_storage().data_ptr() for p in model.parameters() if p.grad is not None}) == 1


def test_a_bucket_has_a_quarter_of_the_gradients_within_bounds():
    with torch.device("meta"):
        resnet50, resnet101 = (build_model(config, seed=1) for config in (RESNET50, RESNET101))
        bert = Bert(BERT_LARGE)
    assert bucket_megabytes(resnet50) == 25  # of 97.5
    assert bucket_megabytes(resnet101) == pytest.approx(44_549_160 * 4 / 2**20 / 4)
    assert bucket_megabytes(bert) == 100  # of 1,279
    resnet101.requires_grad_(False)
    assert bucket_megabytes(resnet101) == 25
