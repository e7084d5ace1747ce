"""Every method has a card, docs/methods.md has all of them as they are now, and what they name exists."""

from pathlib import Path

import pytest

from benchmarks.method_cards import with_cards
from judging.ground.errors import UsageError
from timedrun import cli
from timedrun.commands.chosen_config import settings_of
from timedrun.methods import REGISTRY
from timedrun.runner.storage.method_cards import cards, stages

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "methods.md"


def test_every_method_has_a_card_and_every_card_a_method_or_a_setting():
    missing = REGISTRY.keys() - cards().keys()
    assert not missing, f"write timedrun/methods/cards/{missing}.toml, as the other methods have"
    assert {name for name, card in cards().items() if not card.setting} == set(REGISTRY)


@pytest.mark.results
def test_the_page_is_up_to_date():
    text = PAGE.read_text(encoding="utf-8")
    assert text == with_cards(text), "run: python -m benchmarks.method_cards docs/methods.md"


def test_the_stages_read_from_the_source_are_the_methods_own():
    assert stages() == {name: method.stage.name for name, method in REGISTRY.items()}


@pytest.mark.parametrize("name", cards())
def test_a_card_names_methods_and_settings_that_exist(name):
    card = cards()[name]
    assert not card.interactions.keys() - cards().keys()
    assert name not in card.interactions
    assert all(bool(paper.arxiv) != bool(paper.title) for paper in card.papers)
    assert all(text.endswith(".") for text in (card.summary, card.notes, card.constraints) if text)


@pytest.mark.parametrize("name", [name for name, card in cards().items() if card.setting])
def test_the_options_of_a_setting_are_those_of_a_benchmark(name):
    parser = cli.parser()

    def accepted(benchmark: str, config: str) -> bool:
        words = ["show", benchmark, config, *cards()[name].setting.split()]
        try:
            settings_of(*parser.parse_known_args(words))
        except (SystemExit, UsageError):
            return False
        return True

    configs = {"image_classification": "methods", "language_model": "methods", "gpt": "openwebtext_modern"}
    assert any(accepted(*both) for both in configs.items())


def test_a_page_without_marks_is_refused():
    with pytest.raises(UsageError, match="lacks the marks"):
        with_cards("# Methods\n")
