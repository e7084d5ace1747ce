"""Weights of the models under transformers' names, the inverse of loading them."""

from collections.abc import Mapping

from torch import Tensor

from language_model.encoder import Bert, shapes
from language_model.model import ReferenceBert
from language_model.settings import BertArchitecture
from language_model.weights import ALIASES, PROJECTIONS, WORD, Weights, theirs


def from_own(state: Mapping[str, Tensor], architecture: BertArchitecture) -> Weights:
    """Invert `to_own`, also for gradients under the parameters' names."""
    weights: Weights = {}
    for name, tensor in state.items():
        if ".qkv." in name:
            for part, piece in zip(PROJECTIONS, tensor.chunk(3), strict=True):
                weights[theirs(name.replace(".qkv.", f".{part}."))] = piece
        else:
            weights[theirs(name)] = tensor[: architecture.vocabulary] if theirs(name) == WORD else tensor
    return {name: weights[name] for name in shapes(architecture)}


def weights_of(model: Bert | ReferenceBert) -> Weights:
    """Return the weights of either model, tied ones once."""
    if isinstance(model, Bert):
        return from_own(model.state_dict(), model.architecture)
    return {name: tensor for name, tensor in model.model.state_dict().items() if name not in ALIASES}
