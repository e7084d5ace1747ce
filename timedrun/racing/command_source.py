"""Source of a command: the scripts and settings that it names, and the modules beside them that they import."""

import os
import re
from functools import partial
from pathlib import Path
from typing import Final

from timedrun.runner.storage.local_imports import with_imports

SHELL: Final = (".sh", ".bash")
SETTINGS: Final = (".toml", ".yaml", ".yml", ".json", ".ini", ".cfg")
LARGEST: Final = 1 << 20  # bytes of a file; a larger one is data
_WORD: Final = re.compile(r"[\w./+-]+")
_MODULE: Final = re.compile(r"(?<!\S)-m\s+([\w.]+)")


def source_of(command: str, directory: Path) -> dict[str, bytes]:
    """Return the source of a command that runs in `directory`, by path below it; a script that lies elsewhere, with
    what it imports from its folder, by path below `elsewhere_N`. What scripts of a shell name is source, too."""
    here = directory.absolute()
    files: dict[Path, bytes] = {}
    waiting = _named(command, here)
    while waiting:
        file = waiting.pop(0)
        if file in files or not _is_source(file, here):
            continue
        files[file] = raw = file.read_bytes()
        if file.suffix == ".py":
            waiting += with_imports({file.stem: file}, partial(_module, file.parent)).values()
        elif file.suffix not in SETTINGS:
            waiting += _named(raw.decode(errors="replace"), here)
    roots, places = [here], {}
    for file, raw in files.items():
        root = next((root for root in roots if file.is_relative_to(root)), file.parent)
        roots += [root] if root not in roots else []
        above = f"elsewhere_{roots.index(root)}/" if root != here else ""
        places[above + file.relative_to(root).as_posix()] = raw
    return dict(sorted(places.items()))


def _named(text: str, here: Path) -> list[Path]:
    """Return the paths that a text for the shell may name, those of `-m MODULE` with what that imports."""
    parts = [[*module.split("."), "__main__"] for module in _MODULE.findall(text)]
    names = [".".join(of[:length]) for of in parts for length in range(1, len(of) + 1)]
    found = {name: path for name in names if (path := _module(here, name))}
    words = [Path(os.path.normpath(here / word)) for word in _WORD.findall(text)]
    return [*words, *with_imports(found, partial(_module, here)).values()]


def _module(folder: Path, name: str) -> Path | None:
    place = folder.joinpath(*name.split("."))
    return next((file for file in (place / "__init__.py", Path(f"{place}.py")) if file.is_file()), None)


def _is_source(file: Path, here: Path) -> bool:
    """Return True for a file of Python or a shell and, below `here`, for settings and what names its interpreter in its
    first line, unless it is hidden or large."""
    inside = file.is_relative_to(here)
    parts = file.relative_to(here).parts if inside else file.parts
    if any(part.startswith(".") for part in parts) or not os.path.isfile(file) or file.stat().st_size > LARGEST:
        return False
    if file.suffix in (".py", *SHELL):
        return True
    return inside and (file.suffix in SETTINGS or file.read_bytes()[:2] == b"#!")
