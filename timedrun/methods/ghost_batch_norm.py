"""Ghost batch norm: normalize parts of a batch separately, so that a large batch keeps the noise of a small one."""

from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from timedrun.methods.method import Method, Rule, left_out


class _Ghost(nn.modules.batchnorm._BatchNorm):
    ghost_batch: int
    acted: bool

    def forward(self, input: Tensor) -> Tensor:
        """Normalize ceil(N / ghost_batch) parts of (N, C, ...); each moves the running statistics by its share."""
        if not self.training or not len(input):
            return super().forward(input)
        count = -(-len(input) // self.ghost_batch)
        if count > 1:  # without a look at it, on which torch.compile would compile again
            self.acted = True
        assert self.momentum is not None
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        parts = list(torch.chunk(input, count))
        if len(parts) > 1 and parts[-1].numel() == input.shape[1]:  # one value a channel has no variance
            parts[-2:] = [torch.cat(parts[-2:])]
        share = self.momentum / len(parts)
        running = self.running_mean, self.running_var, self.weight, self.bias
        return torch.cat([F.batch_norm(part, *running, True, share, self.eps) for part in parts])


class GhostBatchNorm1d(_Ghost, nn.BatchNorm1d):
    """Normalize parts of a batch (N, C) or (N, C, L).

    Examples:
        >>> model, _ = GhostBatchNorm().model(nn.Sequential(nn.BatchNorm1d(8)))
        >>> type(model[0]).__name__
        'GhostBatchNorm1d'
    """


class GhostBatchNorm2d(_Ghost, nn.BatchNorm2d):
    """Normalize parts of a batch (N, C, H, W).

    Examples:
        >>> model, _ = GhostBatchNorm().model(nn.Sequential(nn.BatchNorm2d(8)))
        >>> type(model[0]).__name__
        'GhostBatchNorm2d'
    """


class GhostBatchNorm3d(_Ghost, nn.BatchNorm3d):
    """Normalize parts of a batch (N, C, D, H, W).

    Examples:
        >>> model, _ = GhostBatchNorm().model(nn.Sequential(nn.BatchNorm3d(8)))
        >>> type(model[0]).__name__
        'GhostBatchNorm3d'
    """


_GHOSTS: dict[type[nn.Module], type[_Ghost]] = {
    nn.BatchNorm1d: GhostBatchNorm1d,
    nn.BatchNorm2d: GhostBatchNorm2d,
    nn.BatchNorm3d: GhostBatchNorm3d,
}


class GhostBatchNorm(Method, name="ghost_batch_norm"):
    """Normalize parts of `ghost_batch` samples (Hoffer et al. 2017, arXiv 1705.08741), with the momentum divided by
    their number, as in MosaicML Composer. Evaluation does not change.

    Examples:
        >>> model, change = GhostBatchNorm(ghost_batch=16).model(nn.Sequential(nn.BatchNorm2d(8)))
        >>> change
        '1 batch norms over parts of 16 samples'
    """

    acting: ClassVar[tuple[type, ...]] = (_Ghost,)
    ghost_batch: Annotated[int, Rule(lambda count: count >= 2, "2 samples or more")] = 32

    def model(self, model: nn.Module) -> tuple[nn.Module, str]:
        every = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
        norms = [module for module in every if type(module) in _GHOSTS and module.momentum is not None]
        left = left_out(set(every).difference(norms))
        if not norms:
            raise self.no_effect(f"found no batch norm with a momentum that is torch's own{left}")
        for module in norms:
            module.__class__ = _GHOSTS[type(module)]
            module.ghost_batch, module.acted = self.ghost_batch, False  # type: ignore[assignment]
        return model, f"{len(norms)} batch norms over parts of {self.ghost_batch} samples{left}"
