"""A BERT encoder over rows of tokens, padded or unpadded: the results of transformers', with switchable speed-ups."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from language_model.collator import MaskedBatch
from language_model.settings import BertArchitecture, SpeedUps
from language_model.weights import Shape, check, initial_weights, theirs, to_own
from timedrun.methods.fused_layers import dense_gelu_dense, dropout_add_layer_norm, gelu, region
from timedrun.methods.low_precision_norm import norm_in_type
from timedrun.methods.ragged_attention import BACKENDS, Attend, choose, matmul_dtype
from timedrun.methods.training.initialisation import on_meta_device


class Embeddings(nn.Module):
    """Word, position and segment embeddings, summed and normalised (Devlin et al. 2018, section 3)."""

    def __init__(self, architecture: BertArchitecture, rows: int) -> None:
        super().__init__()
        # [PAD] gets no gradient as an input, as in transformers
        self.word_embeddings = nn.Embedding(rows, architecture.hidden, padding_idx=0)
        self.position_embeddings = nn.Embedding(architecture.positions, architecture.hidden)
        self.token_type_embeddings = nn.Embedding(architecture.segments, architecture.hidden)
        self.LayerNorm = nn.LayerNorm(architecture.hidden, architecture.layer_norm_epsilon)

    def forward(self, batch: MaskedBatch) -> Tensor:
        """Return (T, hidden), before the norm. Position and segment are one look-up, for fewer passes over T rows."""
        position, segment = self.position_embeddings.weight, self.token_type_embeddings.weight
        table = (segment[:, None] + position).flatten(0, 1)
        embedded: Tensor = self.word_embeddings(batch.tokens) + functional.embedding(
            batch.segments * len(position) + batch.positions, table
        )
        return embedded


class SelfAttention(nn.Module):
    """Query, key and value projections."""

    def __init__(self, architecture: BertArchitecture, fused_qkv: bool) -> None:
        super().__init__()
        hidden = architecture.hidden
        self.heads, self.fused = architecture.heads, fused_qkv
        if fused_qkv:
            self.qkv = nn.Linear(hidden, 3 * hidden)
        else:
            self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(T, hidden) -> queries, keys and values (T, heads, head width)."""
        rows = hidden.shape[0]
        if self.fused:
            q, k, v = self.qkv(hidden).view(rows, 3, self.heads, -1).unbind(1)
        else:
            q, k, v = (part(hidden).view(rows, self.heads, -1) for part in (self.query, self.key, self.value))
        return q, k, v


class NormedDense(nn.Module):
    """A linear layer to the hidden size, and the norm that follows it after a residual or a GELU."""

    def __init__(self, inputs: int, architecture: BertArchitecture) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, architecture.hidden)
        self.LayerNorm = nn.LayerNorm(architecture.hidden, architecture.layer_norm_epsilon)


def part(function: Callable[..., Any], compiled: bool) -> Callable[..., Any]:
    """Return `function`, or its `region`."""
    return region(function) if compiled else function


class Attention(nn.Module):
    """The weights of a layer's attention."""

    def __init__(self, architecture: BertArchitecture, fused_qkv: bool) -> None:
        super().__init__()
        self.self = SelfAttention(architecture, fused_qkv)
        self.output = NormedDense(architecture.hidden, architecture)


class Layer(nn.Module):
    """A post-layer-norm encoder layer: attention, then two dense layers with a GELU between them."""

    def __init__(self, architecture: BertArchitecture, speed_ups: SpeedUps) -> None:
        super().__init__()
        self.attention = Attention(architecture, speed_ups.fused_qkv)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(architecture.hidden, architecture.intermediate)})
        self.output = NormedDense(architecture.intermediate, architecture)
        self.activation, self.dropout = architecture.activation, architecture.dropout
        self.speed_ups = speed_ups
        self.compiled = False

    def forward(self, hidden: Tensor, attend: Attend, rows: Tensor | None = None) -> Tensor:
        """(T, hidden) -> (T, hidden), or (M, hidden) if only `rows` (M,) are computed after attention."""
        q, k, v = part(SelfAttention.forward, self.compiled)(self.attention.self, hidden)
        mixed = attend(q, k, v, self.dropout if self.training else 0.0)
        finished: Tensor = part(Layer.finish, self.compiled)(self, mixed, hidden, rows)
        return finished

    def finish(self, mixed: Tensor, hidden: Tensor, rows: Tensor | None) -> Tensor:
        """Compute the layer after its attention, which returned `mixed` (T, heads, head width)."""
        mixed = mixed.reshape(hidden.shape)
        if rows is not None:
            mixed, hidden = mixed.index_select(0, rows), hidden.index_select(0, rows)
        hidden = self._add_norm(self.attention.output.dense(mixed), hidden, self.attention.output.LayerNorm)
        return self._add_norm(self._feed_forward(hidden), hidden, self.output.LayerNorm)

    def _feed_forward(self, hidden: Tensor) -> Tensor:
        first: Any = self.intermediate["dense"]
        second = self.output.dense
        if self.speed_ups.fused_dense_gelu_dense:
            parameters = (first.weight, first.bias, second.weight, second.bias)
            return dense_gelu_dense(hidden, *parameters, self.activation)
        result: Tensor = second(gelu(first(hidden), self.activation))
        return result

    def _add_norm(self, x: Tensor, residual: Tensor, norm: nn.LayerNorm) -> Tensor:
        if self.speed_ups.fused_dropout_add_norm:
            parameters = (norm.weight, norm.bias, norm.eps)
            return dropout_add_layer_norm(x, residual, *parameters, self.dropout, self.training)
        dropped = functional.dropout(x, self.dropout, self.training)
        return layer_norm(dropped + residual, norm, self.speed_ups.low_precision_residual)


def layer_norm(x: Tensor, norm: nn.LayerNorm, low_precision: bool) -> Tensor:
    """Apply `norm`; with `low_precision` in x's dtype, where autocast would return fp32. Statistics are fp32."""
    if not low_precision or x.dtype == norm.weight.dtype:
        result: Tensor = norm(x)
        return result
    shape, epsilon = norm.normalized_shape, norm.eps
    with torch.autocast(x.device.type, enabled=False):
        return norm_in_type(
            x,
            norm.weight.to(x.dtype),
            norm.bias.to(x.dtype),
            lambda x, weight, bias: functional.layer_norm(x, shape, weight, bias, epsilon),
        )


class Head(nn.Module):
    """Masked-token head: dense, GELU, norm, then scores from word embeddings and a bias (Devlin et al. 2018, 3.1)."""

    def __init__(self, architecture: BertArchitecture) -> None:
        super().__init__()
        self.transform = NormedDense(architecture.hidden, architecture)
        self.bias = nn.Parameter(torch.zeros(architecture.vocabulary))
        self.activation = architecture.activation

    def forward(self, hidden: Tensor, words: Tensor, low_precision: bool) -> Tensor:
        """(M, hidden) and word embeddings (rows, hidden) -> (M, rows) scores, -inf for padding rows."""
        x = layer_norm(gelu(self.transform.dense(hidden), self.activation), self.transform.LayerNorm, low_precision)
        bias = functional.pad(self.bias, (0, words.shape[0] - self.bias.shape[0]), value=float("-inf"))
        return functional.linear(x, words, bias)


class Bert(nn.Module):
    """A masked language model over a `MaskedBatch`. Within `embeddings`, `layer` and `head`, names of parameters are
    those of transformers, but for those of `fused_qkv`."""

    def __init__(self, architecture: BertArchitecture, speed_ups: SpeedUps | None = None) -> None:
        super().__init__()
        self.architecture = architecture
        self.speed_ups = speed_ups = speed_ups or SpeedUps()
        multiple = speed_ups.pad_vocabulary
        self.embeddings = Embeddings(architecture, -(-architecture.vocabulary // multiple) * multiple)
        self.layer = nn.ModuleList(Layer(architecture, speed_ups) for _ in range(architecture.layers))
        self.head = Head(architecture)
        self.compiled = False
        self.attention = ""
        """The backend of `attention.BACKENDS`; "": the one that suits the device."""

    def compile(self, *arguments: Any, **options: Any) -> None:
        """Compile the regions before, between and after attention, in place, each for any number of rows.

        All layers share their two regions, so that tracing takes the time of one layer, and DistributedDataParallel
        reduces a layer's gradients while those of the layers before it are computed. No region holds the attention: its
        kernels are not generated by the compiler, and the plan of some depends on the lengths of the sequences.
        """
        for module in self.modules():
            if isinstance(module, Bert | Layer):
                module.compiled = True

    def hidden_matrices(self) -> list[Tensor]:
        """Return the weights of the layers' and the head's linear layers, the parameters that Muon trains."""
        modules = (*self.layer.modules(), self.head.transform.dense)
        return [module.weight for module in modules if isinstance(module, nn.Linear)]

    def _embed(self, batch: MaskedBatch) -> Tensor:
        low_precision, hidden = self.speed_ups.low_precision_residual, self.embeddings(batch)
        if low_precision:
            hidden = hidden.to(matmul_dtype(hidden))
        hidden = layer_norm(hidden, self.embeddings.LayerNorm, low_precision)
        return functional.dropout(hidden, self.architecture.dropout, self.training)

    def hidden(self, batch: MaskedBatch) -> Tensor:
        """Return (T, hidden) states after the last layer; with `last_layer_subset` (M, hidden), at masked rows."""
        words = self.embeddings.word_embeddings.weight
        backend = self.attention or choose(
            self.speed_ups.attention, words.device, matmul_dtype(words), self.architecture.dropout
        )
        attend = BACKENDS[backend](batch)
        hidden = part(Bert._embed, self.compiled)(self, batch)
        for layer in self.layer[:-1]:
            hidden = layer(hidden, attend)
        last: Tensor = self.layer[-1](hidden, attend, batch.masked if self.speed_ups.last_layer_subset else None)
        return last

    def _scores(self, hidden: Tensor, batch: MaskedBatch) -> Tensor:
        """Return scores at masked rows or, without the speed-ups that leave the others out, at every row."""
        if self.speed_ups.masked_head and not self.speed_ups.last_layer_subset:
            hidden = hidden.index_select(0, batch.masked)
        words, low_precision = self.embeddings.word_embeddings.weight, self.speed_ups.low_precision_residual
        scores: Tensor = self.head(hidden, words, low_precision)
        return scores

    def _loss(self, hidden: Tensor, batch: MaskedBatch) -> Tensor:
        labels = batch.labels
        if not (self.speed_ups.masked_head or self.speed_ups.last_layer_subset):
            labels = torch.full_like(batch.tokens, -100).index_copy(0, batch.masked, labels)
        scores = self._scores(hidden, batch).float()
        return functional.cross_entropy(scores, labels, ignore_index=-100, reduction="sum")

    def _correct(self, hidden: Tensor, batch: MaskedBatch) -> Tensor:
        scores = self._scores(hidden, batch)
        if not (self.speed_ups.masked_head or self.speed_ups.last_layer_subset):
            scores = scores.index_select(0, batch.masked)
        return (scores.argmax(-1) == batch.labels).sum()

    def forward(self, batch: MaskedBatch) -> Tensor:
        """Return the cross-entropy summed over the masked tokens, a 0-dimensional tensor."""
        loss: Tensor = part(Bert._loss, self.compiled)(self, self.hidden(batch), batch)
        return loss

    @torch.no_grad()
    def count_correct(self, batch: MaskedBatch) -> Tensor:
        """Return the number of masked tokens whose highest score is the label's, a 0-dimensional int64 tensor."""
        correct: Tensor = part(Bert._correct, self.compiled)(self, self.hidden(batch), batch)
        return correct

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Load a copy of `weights`, under transformers' names. Raises DataError if any does not fit; see `check`."""
        own = {name: tuple(tensor.shape) for name, tensor in self.state_dict().items()}
        self.load_state_dict(to_own(check(weights, shapes(self.architecture)), own))


def build_bert(architecture: BertArchitecture, seed: int, speed_ups: SpeedUps | None = None) -> Bert:
    """Build the encoder with initial weights from `seed`, the same for all speed-ups. No global generator is used."""
    with on_meta_device():
        model = Bert(architecture, speed_ups)
    model.to_empty(device="cpu")
    model.load_weights(initial_weights(shapes(architecture), architecture.initializer_range, seed))
    return model


def shapes(architecture: BertArchitecture) -> dict[str, Shape]:
    """Return name and shape of every tensor of transformers' BertForMaskedLM, in its order, tied ones once."""
    with on_meta_device():
        model = Bert(architecture)
    return {theirs(name): tuple(parameter.shape) for name, parameter in model.named_parameters()}
