"""`timedrun new`: write a benchmark or a method to start from, a copy of a template beside this module."""

import argparse
import importlib.util
import json
import keyword
from pathlib import Path
from typing import Final

from judging.ground.errors import ExitCode, UsageError
from mlevents.rounds import rulesets_of
from timedrun.runner.storage import method_cards
from timedrun.runner.storage.benchmark_folders import nearby

TEMPLATE: Final = Path(__file__).resolve().with_name("benchmark_template")
METHOD: Final = TEMPLATE.with_name("method_template")


def new(arguments: argparse.Namespace) -> ExitCode:
    """Write the package or module `arguments.name` and print the commands to try it. Raise UsageError if it cannot be
    imported under this name, the name is that of a known benchmark, or it exists."""
    name, folder = arguments.name, Path(arguments.out)
    if not name.isascii() or not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise UsageError(f"'{name}' cannot name a Python module; use letters, digits and _: my_{arguments.kind}.")
    if arguments.kind == "benchmark":
        folder /= name
        require_benchmark_name(name)
        template, words = TEMPLATE, {TEMPLATE.name: name}
        verbs = [f"preflight {name} baseline", f"run {name} baseline", f"race {name} baseline methods --runs 3"]
    else:
        own = "".join(word.capitalize() for word in name.split("_"))
        place = f"{__package__}.{METHOD.name}.{METHOD.name}"
        template, words = METHOD, {place: name, METHOD.name: name, "MethodTemplate": own}
        config = f"'baseline+{name}:{own}'"
        verbs = [f"run image_classification {config}", f"race image_classification baseline {config} --runs 3"]
    texts = {}
    for file in sorted(template.glob("*.py")):
        if template == METHOD and file.name == "__init__.py":
            continue
        text, to = file.read_text(encoding="utf-8"), file.name
        for word, instead in words.items():
            text, to = text.replace(word, instead), to.replace(word, instead)
        texts[folder / to] = text
    for path in [folder] if arguments.kind == "benchmark" else texts:
        if path.exists():
            raise UsageError(f"{path} already exists and was not overwritten; choose another name or --out folder.")
    if importlib.util.find_spec(name) is not None:
        raise UsageError(f"Python already has a module '{name}', which would hide the new one; choose another name.")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    commands, files = [f"timedrun {verb}" for verb in verbs], [path.name for path in texts]
    if arguments.json:
        print(json.dumps({"folder": str(folder), "files": files, "try": commands}, indent=2))
        return ExitCode.OK
    top = folder.parent if arguments.kind == "benchmark" else folder
    where = "" if top.resolve() == Path.cwd() else f", in {top}"
    print(f"Wrote {'' if folder == Path() else f'{folder}: '}{', '.join(files)}")
    print(f"next{where}:\n" + "\n".join(f"    {command}" for command in commands))
    return ExitCode.OK


def require_benchmark_name(name: str) -> None:
    """Raise UsageError if `name` stands for something else on the command line or in logs."""
    if name in (*method_cards.WORDS, "command"):
        place = "`timedrun run` and `timedrun race`" if name == "command" else "`timedrun show`"
        raise UsageError(f"'{name}' is a word of {place}; choose another name.")
    for path in nearby():
        if path != name and path.rpartition(".")[2] == name:
            raise UsageError(f"'{name}' is the short name of the benchmark {path}; choose another name.")
    if known := rulesets_of(name):
        raise UsageError(f"ruleset {known[-1]} has rules for {name}; choose another name.")
