"""Every method has a card, docs/methods.md has all of them as they are now, and what they name exists."""

from pathlib import Path

import pytest

from timedrun import cli
from timedrun.commands.run import settings_of
from timedrun.errors import UsageError
from timedrun.methods import REGISTRY
from timedrun.methods.card import with_cards
from timedrun.storage.method_cards import cards, stages

PAGE = Path(__file__).resolve().parents[2] / "docs" / "methods.md"


def test_every_method_has_a_card() -> None:
    missing = REGISTRY.keys() - cards().keys()
    assert not missing, f"write timedrun/methods/cards/{missing}.toml, as the other methods have"


def test_the_page_is_up_to_date() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == with_cards(text), "run: python -m timedrun.methods.card docs/methods.md"


def test_the_stages_read_from_the_source_are_the_methods_own() -> None:
    assert stages() == {name: method.stage.name for name, method in REGISTRY.items()}


@pytest.mark.parametrize("name", cards())
def test_a_card_names_methods_and_settings_that_exist(name: str) -> None:
    card = cards()[name]
    assert not card.interactions.keys() - cards().keys()
    assert name not in card.interactions
    assert all(bool(paper.arxiv) != bool(paper.title) for paper in card.papers)
    assert all(text.endswith(".") for text in (card.summary, card.notes, card.constraints) if text)


@pytest.mark.parametrize("name", [name for name, card in cards().items() if card.setting])
def test_the_options_of_a_setting_are_those_of_a_benchmark(name: str) -> None:
    refused = []
    for benchmark in ("image_classification", "language_model"):
        words = ["show", benchmark, "methods", *cards()[name].setting.split()]
        try:
            settings_of(*cli.parser().parse_known_args(words))
        except (SystemExit, UsageError) as error:
            refused.append(error)
    assert len(refused) < 2
