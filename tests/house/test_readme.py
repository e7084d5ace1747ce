"""README and docs are true: snippets run, commands parse, links resolve, the index is complete."""

import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from torch import nn

from timedrun import cli
from timedrun.commands.chosen_config import settings_of
from timedrun.commands.parser import ENDED, VERBS, parser
from timedrun.evidence.analysis import own_step
from timedrun.methods import stack
from timedrun.runner.storage import method_sources

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    "README.md",
    pytest.param("results/README.md", marks=pytest.mark.results),
    "image_classification/README.md",
    "image_segmentation/README.md",
    "language_model/README.md",
    *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")),
]
NAMES = {verb for group in VERBS.values() for verb in group}
PARSER = parser()
SHIPPED = {"image_classification", "image_segmentation", "language_model", "gpt", "fineweb", "llama31_8b"}


def page_text(page: str) -> str:
    return re.sub(r"\\\n\s*", "", (ROOT / page).read_text())


def refusal(words: list[str]) -> str:
    """Return why the command line would be refused, "" if it would not."""
    try:
        arguments, rest = PARSER.parse_known_args(words)
        if rest and arguments.verb not in cli.TAKE_OVERRIDES:
            return f"unknown: {rest}"
        config = getattr(arguments, "config", None)
        of_a_config = arguments.verb in {"run", "show", "preflight"} and arguments.benchmark in SHIPPED
        if of_a_config and config and not config.endswith(".json"):
            settings_of(arguments, rest)
    except SystemExit as error:
        return f"exit code {error.code}" if error.code else ""
    except Exception as error:
        return str(error)
    return ""


@pytest.mark.parametrize("page", PAGES)
def test_every_command_line_in_a_block_is_accepted(page, tmp_path, monkeypatch):
    if page == "docs/own_method.md":  # whose first command writes the method of the others
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.setattr(method_sources, "_named", {})
        assert cli.main(["new", "method", "my_method"]) == 0
    lines = re.findall(r"^ {4,}(?:\$ )?timedrun ([^>\n]*)", page_text(page), flags=re.MULTILINE)
    whole = [re.sub(r"(?<=\S)\.\.\.", "", line.replace(" ... ", " image_classification methods ")) for line in lines]
    commands = [shlex.split(line, comments=True) for line in whole]
    commands = [words for words in commands if words[0] in NAMES and "|" not in words]
    refused = {" ".join(words): why for words in commands if (why := refusal(words))}
    assert not refused


@pytest.mark.parametrize("page", PAGES)
def test_every_verb_and_option_in_running_text_exists(page):
    verbs = next(action for action in PARSER._actions if action.dest == "verb").choices
    assert isinstance(verbs, dict)
    unknown = []
    for verb, rest in re.findall(r"`(?:taskset -c \d )?timedrun (\w+)([^`]*)`", page_text(page)):
        options = re.findall(r"(?<= )--[a-z-]+(?=[ =]|$)", rest)
        ended = [option for option in options if {option, f"{verb} {option}"} & cli.REPLACED.keys()]
        if verb in NAMES and verb not in cli.TAKE_OVERRIDES:
            ended += [option for option in options if option not in verbs[verb]._option_string_actions]
        unknown += [f"timedrun {verb} {option}" for option in ended] + [verb] * (verb in ENDED)
    assert not unknown


def test_a_wrong_command_is_noticed():
    assert refusal(["score", "--nothing", "PATH"]) and refusal(["run", "image_classification", "metods"])
    assert refusal(["run", "image_classification", "methods", "--optimizer.peak", "1"])
    assert not refusal(["run", "image_classification", "methods", "--optimizer.peak-lr", "1"])


@pytest.mark.parametrize("page", PAGES)
def test_links_resolve(page):
    targets = re.findall(r"\]\((?!https?:)([^)#\s]+)[^)]*\)", page_text(page))
    in_image = not (ROOT / "results/README.md").exists()
    missing = [target for target in targets if not ((ROOT / page).parent / target).exists()]
    assert not [target for target in missing if not (in_image and "results/" in target)]


def test_every_page_of_docs_is_in_the_index():
    index = page_text("docs/README.md")
    assert not [
        page.name for page in (ROOT / "docs").glob("*.md") if page.stem != "README" and f"({page.name})" not in index
    ]


def test_methods_on_an_own_model_work_as_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = re.findall(r"```python\n(.*?)```", page_text("docs/own_model.md"), flags=re.DOTALL)[0]
    names: dict[str, object] = {}
    exec(code, names)
    speed = names["speed"]
    assert any("1 convolution" in line for line in speed.report)
    speed.verify()
    assert list(tmp_path.glob("*.pt"))


def test_a_recipe_on_an_own_model_works_as_printed(torchvision):
    code = re.findall(r"```python\n(.*?)```", page_text("docs/recipes.md"), flags=re.DOTALL)[0]
    names: dict[str, object] = {}
    exec(code.replace("(64", "(32").replace("64, 64)", "32, 32)"), names)  # an eighth of the time
    assert "ema: 1 updates of the moving average" in names["speed"].report


def test_an_own_method_works_as_printed():
    code = re.findall(r"```python\n(.*?)```", page_text("docs/own_method.md"), flags=re.DOTALL)[0]
    names: dict[str, object] = {"__name__": __name__}
    exec(code, names)
    net, speed = nn.Linear(3, 2), stack(names["MyMethod"](gain=0.5))
    weight = net.weight.clone()
    torch.testing.assert_close(speed.model(net).weight, weight * 0.5)
    speed.before_step(net, 0, 0.0)
    net(torch.randn(4, 3)).square().sum().backward()
    speed.gradients(net)
    speed.verify()
    torch.testing.assert_close(net.weight.grad.sum(1), torch.zeros(2))


def test_a_choice_for_an_own_training_step_works_as_printed(monkeypatch):
    monkeypatch.setattr(own_step, "CHUNK_SECONDS", 0.001)
    (code,) = re.findall(r"```python\n(.*?)```", page_text("docs/auto_own_step.md"), flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)
    assert {"methods ChannelsLast", "fused True"} <= set(names["chosen"].evidence)


def test_the_readme_has_every_extra_and_one_screen_a_topic():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    readme = page_text("README.md")
    assert not [extra for extra in project["optional-dependencies"] if f"`{extra}`" not in readme]
    assert len(readme.splitlines()) <= 120
