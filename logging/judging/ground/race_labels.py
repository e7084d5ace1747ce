"""Labels of a race's sides: the names that its table shows, for the folders in which the sides lie."""

import json
import os
from pathlib import Path
from string import ascii_lowercase
from typing import Final

from judging.ground.atomic_file import is_inside
from judging.ground.errors import UsageError, nearest
from judging.ground.file_kind import read_text

RACE_FILE: Final = "race.json"


def letters(count: int) -> list[str]:
    """Return the letters of as many sides: a to z, then 27, 28 ..."""
    return [*ascii_lowercase, *(str(number) for number in range(27, count + 1))][:count]


def is_swept(side: Path) -> bool:
    """Return True if the folder `side` holds the runs of one length of a sweep by the race.json next to it."""
    try:
        return side.name in json.loads(read_text(side.absolute().parent / RACE_FILE))["race"]["budgets"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False


def labels_in(race: Path) -> dict[str, str]:
    """Return the labels in the race.json of the folder `race` by the folder of their side; empty if there is none.
    A side that is no folder of the race is left out."""
    try:
        values = json.loads(read_text(race / RACE_FILE))
        sides = values["race"]["sides"] if "race" in values else {name: name for name in values["runs_seconds"]}
        return {name: str(label) for name, label in sides.items() if is_inside(name) and "/" not in name}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def label_of(side: Path) -> str:
    """Return the label of the folder `side` by the race.json next to it, "" if there is none."""
    return labels_in(side.absolute().parent).get(side.name, "")


def raced_together(first: Path, second: Path) -> bool:
    """Return True if two folders of logs are sides of one race."""
    first, second = first.absolute(), second.absolute()
    both = {first.name, second.name}
    return first.parent == second.parent and len(both) == 2 and both <= labels_in(first.parent).keys()


def side_at(race: Path, name: str) -> Path:
    """Return the folder of a side of `race` by its label, its folder's name or its letter. Raises UsageError for
    another name, and for a folder that holds no race."""
    labels = labels_in(race)
    if not labels:
        raise UsageError(f"{race} holds no {RACE_FILE}; name the folder of a race, then two of its sides.")
    names = _names(labels)
    if name not in names:
        shown = ", ".join(f"{letter} ({label})" for letter, label in zip(names, labels.values(), strict=False))
        raise UsageError(f"{race} has no side {name!r}.{nearest(name, labels.values())} Sides: {shown}.")
    return race / names[name]


def resolved(path: str) -> str:
    """Return `path` with the folder of a side where it has the side's label or letter, as RACE/LABEL/result_0.txt."""
    for place in () if os.path.exists(path) else range(1, len(path)):
        race, rest = Path(path[:place]), path[place + 1 :]
        names = _names(labels_in(race) if path[place] == "/" else {})
        for name, side in sorted(names.items(), key=lambda pair: -len(pair[0])):  # "lr/2" before "lr"
            if rest == name or rest.startswith(f"{name}/"):
                return f"{race / side}{rest.removeprefix(name)}"
    return path


def near(path: Path) -> str:
    """Return " Did you mean ...?" for a path that does not exist, by what its folder holds, "" if no name is near."""
    beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    found = nearest(path.name, [*labels_in(path.parent).values(), *beside], cutoff=0.6)
    return found.replace("mean ", f"mean {path.parent}/", 1) if path.parent != Path() else found


def _names(labels: dict[str, str]) -> dict[str, str]:
    """Return the folder of each side by letter, label and folder, of which the last counts most."""
    by_letter = dict(zip(letters(len(labels)), labels, strict=True))
    return by_letter | {label: side for side, label in labels.items()} | {side: side for side in labels}
