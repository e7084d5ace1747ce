"""SAM: gradients taken at the worst point near the weights, so that training ends in a flat minimum."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from timedrun.methods.method import Compute, Hooks, Method, Position, Positive, Rule, Stage, Steps, local_tensors


class _SAMHooks(Hooks):
    _method: SAM
    saved = ("steps",)
    done = "{hooks.steps} steps with the gradient of perturbed weights"
    steps = 0

    def backward(self, compute: Compute, model: nn.Module, at: Position) -> Tensor:
        if (at.step + 1) % self._method.interval:
            return compute(True)
        loss = compute(False)  # each rank perturbs by the gradient of its own samples
        weights = [parameter for parameter in model.parameters() if parameter.grad is not None]
        kept = [weight.detach().clone() for weight in weights]
        with torch.no_grad():
            gradients = [weight.grad for weight in weights if weight.grad is not None]
            norm = nn.utils.get_total_norm(gradients)
            scale = torch.where(norm.isfinite(), self._method.rho / (norm + self._method.epsilon), 0.0)
            torch._foreach_mul_(gradients, scale)
            for gradient in gradients:  # inf * 0; NaN weights would enter batch norm's statistics, which are kept
                gradient.nan_to_num_(nan=0.0)
            torch._foreach_add_([weight.detach() for weight in weights], gradients)
        for weight in weights:
            weight.grad = None
        try:
            compute(True)
        finally:  # exactly: subtracting the perturbation would round
            torch._foreach_copy_([weight.detach() for weight in local_tensors(weights)], local_tensors(kept))
        self.steps += 1
        return loss


class SAM(Method, name="sam", stage=Stage.STEP, hooks=_SAMHooks):
    """Minimize the sharpness of the loss, too (Foret et al. 2020, arXiv 2010.01412), in every `interval`-th step.

    Such a step runs forward and backward twice: at w, without a reduction over ranks, and at w + rho * g / (|g| + eps).
    The optimizer steps from w with the second gradient; the loss reported is that at w. Both passes see the same mixed
    batch, unlike in MosaicML Composer. As there, the second pass draws its random numbers anew, and both update batch
    norm's running statistics. A first gradient that is not finite perturbs nothing: with fp16 the second pass overflows
    like the first, on whichever rank, and the loss scaler skips the step.

    Examples:
        >>> from timedrun.methods import stack
        >>> speed, model = stack(SAM(rho=0.05)), nn.Linear(4, 1)
        >>> def compute(reduced):
        ...     loss = model(torch.ones(8, 4)).square().mean()
        ...     loss.backward()
        ...     return loss
        >>> speed.before_step(model, 0, progress=0.0)
        >>> loss = speed.backward(compute, model)  # two passes
        >>> speed.report
        ['sam: 1 steps with the gradient of perturbed weights']
    """

    rho: Positive = 0.05
    """Norm of the perturbation; larger with a longer interval (0.5 at 10)."""
    epsilon: Annotated[float, Rule(lambda value: value >= 0, "0 or more")] = 1e-12
    interval: Steps = 1
