"""The size of the project only falls: a limit rises by what another one falls in the same commit."""

import pytest

from tests.house import structure

LINES = {"judge": 15_103, "referee": 3_236, "trainer": 38_128, "tests": 36_628}
ROOMS = {
    "mlevents": structure.Graph(16, 10, 46, 0),
    "judging": structure.Graph(6, 5, 9, 0),
    "referee": structure.Graph(17, 6, 31, 0),
    "timedrun": structure.Graph(8, 7, 14, 0),
    "timedrun.methods": structure.Graph(43, 6, 100, 0),
    "timedrun.runner": structure.Graph(13, 8, 23, 0),
    "timedrun.racing": structure.Graph(20, 6, 37, 0),
    "timedrun.evidence": structure.Graph(11, 4, 11, 0),
    "timedrun.commands": structure.Graph(34, 3, 19, 0),
    "image_classification": structure.Graph(20, 8, 50, 0),
    "image_segmentation": structure.Graph(10, 7, 19, 0),
    "language_model": structure.Graph(19, 9, 61, 0),
}
VERBS, OPTIONS = 18, 140
OTHER_LINES = 1_952


@pytest.mark.parametrize(("house", "most"), LINES.items())
def test_a_house_has_at_most_so_many_lines(house, most):
    assert structure.lines(structure.HOUSES[house]) <= most


def test_files_that_are_no_python_have_at_most_so_many_lines():
    assert structure.lines(structure.EVERYWHERE, structure.OTHER_KINDS) <= OTHER_LINES


@pytest.mark.parametrize(("package", "most"), ROOMS.items())
def test_a_package_has_at_most_so_many_rooms_floors_and_arrows(package, most):
    graph = structure.graph_of(package)
    assert all(value <= limit for value, limit in zip(graph, most, strict=True)), graph


def test_the_command_line_has_at_most_so_many_verbs_and_options():
    verbs, options = structure.verbs_and_options()
    assert verbs <= VERBS and options <= OPTIONS
