"""`timedrun bench loader language_model`: what it refuses, and when the goal counts as met."""

import pytest

from language_model.bench import goal
from timedrun.bench.loader_benchmark import LoaderPass, LoaderRates
from timedrun.cli import main
from timedrun.errors import ExitCode


def row(workers: int, rate: float, *, loader: str = "unpadded", longest: int = 512) -> LoaderRates:
    passes = tuple(LoaderPass(1000, 1000 / rate, 1.0, None) for _ in range(3))
    return LoaderRates(loader, "synthetic", longest, "sequences", workers, workers, passes[0], passes)


def test_the_goal_is_judged_on_two_cores_at_most() -> None:
    assert goal([row(1, 12_000), row(2, 21_000), row(16, 90_000)]).met is True
    assert goal([row(1, 12_000), row(2, 19_000), row(16, 90_000)]).met is False


def test_other_lengths_or_layouts_say_nothing_of_the_goal() -> None:
    assert goal([row(2, 90_000, longest=128)]).met is None
    assert goal([row(2, 90_000, loader="padded")]).met is None
    assert goal([row(4, 90_000)]).met is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--loaders", "quick"], "no loader quick; there are: unpadded, padded"),
        (["--images", "photos"], "--images and --stores are for images"),
        (["125m_baseline", "--data", "gpt"], "only the loader of BERT's store is measured"),
    ],
)
def test_what_it_cannot_measure_is_refused_in_words(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "loader", "language_model", *words]) == ExitCode.USAGE
    assert told in capsys.readouterr().err
