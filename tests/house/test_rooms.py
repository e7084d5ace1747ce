"""A reader who follows a race from its first word to its report passes few rooms, and goes back to none."""

from tests.house.rooms import PATHS, flow


def test_a_race_of_commands_passes_few_rooms_and_returns_to_none():
    rooms, returns = flow(PATHS["race of commands"])
    assert len(rooms) <= 8 and returns == [], rooms
