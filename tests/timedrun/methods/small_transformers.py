"""Small models of transformers."""

import importlib.util
from typing import Any

import pytest
import torch

from language_model.model import import_transformers


def small_transformer(name: str, **settings: Any) -> Any:
    """Return the model `name` of transformers, such as BertForMaskedLM, with the same weights each time."""
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    torch.manual_seed(0)
    kind = getattr(import_transformers(), name)
    return kind(kind.config_class(**settings))
