"""The baseline model: transformers' unmodified BertForMaskedLM on padded batches, with logits at every position."""

import importlib
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from judging.ground.errors import UsageError
from language_model.collator import MaskedBatch
from language_model.settings import BertArchitecture
from language_model.weights import ALIASES, Shape, check, initial_weights
from timedrun.methods.ragged_attention import importable

ACTIVATIONS = {"gelu_tanh": "gelu_pytorch_tanh", "gelu": "gelu"}


def import_transformers(model: Literal["bert", "gpt2"] = "bert") -> ModuleType:
    """Import transformers and its `model`. Raises UsageError if it is not installed.

    A torchvision that cannot be imported (one without operators for this build of torch) would make the import of
    transformers fail; it is hidden during the import.
    """
    loaded, modeling = sys.modules.get("transformers"), f"transformers.models.{model}.modeling_{model}"
    if loaded and modeling in sys.modules:
        return loaded
    hidden = "torchvision" not in sys.modules and not importable("torchvision")
    if hidden:
        sys.modules["torchvision"] = None  # type: ignore[assignment]
    try:
        module = importlib.import_module("transformers")
        importlib.import_module(modeling)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the transformers baseline cannot be built: {error}. Install it: pip install 'timedrun[language]'"
        ) from error
    finally:
        if hidden:
            del sys.modules["torchvision"]
    return module


class ReferenceBert(nn.Module):
    """transformers' BertForMaskedLM behind the interface of `encoder.Bert`; takes padded batches only."""

    def __init__(self, architecture: BertArchitecture, attention: Literal["eager", "sdpa"]) -> None:
        super().__init__()
        transformers = import_transformers()
        self.architecture = architecture
        config = transformers.BertConfig(
            vocab_size=architecture.vocabulary,
            hidden_size=architecture.hidden,
            num_hidden_layers=architecture.layers,
            num_attention_heads=architecture.heads,
            intermediate_size=architecture.intermediate,
            hidden_act=ACTIVATIONS[architecture.activation],
            hidden_dropout_prob=architecture.dropout,
            attention_probs_dropout_prob=architecture.dropout,
            max_position_embeddings=architecture.positions,
            type_vocab_size=architecture.segments,
            initializer_range=architecture.initializer_range,
            layer_norm_eps=architecture.layer_norm_epsilon,
            attn_implementation=attention,
        )
        with torch.random.fork_rng(devices=[]):  # its initial weights, which are replaced, use no global generator
            self.model: Any = transformers.BertForMaskedLM(config)

    def logits(self, batch: MaskedBatch) -> Tensor:
        """Return (T, vocabulary) scores at every row of a padded batch. Raises UsageError for an unpadded one."""
        if not batch.padded:
            raise UsageError(
                "the transformers baseline accepts padded batches only; this step's batch is unpadded and was "
                "not computed. Collate with padding, or use --implementation timedrun."
            )
        shape = (batch.lengths.numel(), batch.longest)
        place = torch.arange(batch.longest, device=batch.lengths.device)
        output = self.model(
            input_ids=batch.tokens.view(shape),
            token_type_ids=batch.segments.view(shape),
            attention_mask=(place < batch.lengths[:, None]).long(),
        )
        scores: Tensor = output.logits.view(-1, self.architecture.vocabulary)
        return scores

    def forward(self, batch: MaskedBatch) -> Tensor:
        """Return the cross-entropy summed over the masked tokens, a 0-dimensional tensor."""
        labels = torch.full_like(batch.tokens, -100).index_copy(0, batch.masked, batch.labels)
        return cross_entropy(self.logits(batch).float(), labels, ignore_index=-100, reduction="sum")

    @torch.no_grad()
    def count_correct(self, batch: MaskedBatch) -> Tensor:
        """Return the number of masked tokens whose highest score is the label's, a 0-dimensional int64 tensor."""
        return (self.logits(batch)[batch.masked].argmax(-1) == batch.labels).sum()

    @property
    def shapes(self) -> dict[str, Shape]:
        """Name and shape of every tensor, tied ones once."""
        state = self.model.state_dict()
        return {name: tuple(tensor.shape) for name, tensor in state.items() if name not in ALIASES}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Load a copy of `weights`, under transformers' names. Raises DataError if any does not fit; see `check`."""
        weights = check(weights, self.shapes)
        tied = {alias: weights[name] for alias, name in ALIASES.items()}
        self.model.load_state_dict({**weights, **tied})


def build_reference(
    architecture: BertArchitecture, seed: int, attention: Literal["eager", "sdpa"] = "eager"
) -> ReferenceBert:
    """Build the baseline with the initial weights of `encoder.build_bert` for the same seed."""
    model = ReferenceBert(architecture, attention)
    model.load_weights(initial_weights(model.shapes, architecture.initializer_range, seed))
    return model
