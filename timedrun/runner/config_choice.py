"""Configs as a command line names them: a name or a file, followed by methods that are added and left out.

methods    digits_methods-blurpool    baseline+ema(half_life=40)-label_smoothing    my.json+my_module:MyMethod
"""

import ast
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from judging.ground import stdio
from judging.ground.errors import UsageError, nearest
from judging.ground.result_files import read_json
from timedrun.methods import REGISTRY, Method
from timedrun.methods.training import number_formats
from timedrun.runner.benchmark import Benchmark
from timedrun.runner.config import Config, RunConfig, SubmissionConfig, digest, load, method_of, override
from timedrun.runner.method_reference import class_of, reference_of
from timedrun.runner.storage.method_sources import REFERENCE, name_by_user

FILE: Final = ".json"
PATH: Final = re.compile(r".*[/\\](?=[^/\\]*\.json(?:[+-]|$))")
"""Folders of a config file in a word of a command line."""
NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}", re.ASCII)
SHAPE: Final = "give NAME or FILE, then +METHOD, +METHOD(field=value,...) or -METHOD; METHOD is a name or module:Class"
_COLON: Final = ".__class__."
"""Stands for the colon of module:Class in Python's syntax."""

Change = tuple[str, str, dict[str, Any]]
""""+" or "-", the name of a method, and the fields given for it."""


def config_of(
    benchmark: Benchmark,
    text: str,
    data: str | None = None,
    overrides: Sequence[str] = (),
    *,
    name: str | None = None,
    prog: str = "",
) -> RunConfig:
    """Return the config that `text` names, with its changes.

    A config whose settings, seed and submission apart, differ from those of the config or file that `text` names is
    called `<name>-<8 hexadecimal digits>` of the settings' digest, unless `name` is given.

    A named config for CPUs is in fp32 where the CPU has no instructions for its number format (`in_hardware`).

    Args:
        data: dataset of a config that is given without it, such as "digits"; default: the benchmark's.
        overrides: options such as `["--optimizer.peak-lr", "0.1"]`. prog: the command line they belong to.

    Raises UsageError if a name, field or value does not exist or does not fit, and names what does; tyro raises
    SystemExit for an unknown option.
    """
    stem, changes = split(benchmark, text, data)
    base = read_config(benchmark, Path(stem)) if stem.endswith(FILE) else benchmark.config(stem, data)
    changed = base if stem.endswith(FILE) else in_hardware(benchmark, base)
    for change in changes:
        changed = with_change(changed, change)
    changed = override(changed, overrides, prog=prog)
    own, theirs = (replace(each, submission=SubmissionConfig()) for each in (changed, base))  # changes no run
    if name is None and own.name == theirs.name and digest(own) != digest(theirs):
        shipped = replace(own, name=re.sub(r"-[0-9a-f]{8}$", "", base.name))  # equal settings have one name
        name = f"{shipped.name}-{digest(shipped)[:8]}"
    changed = replace(changed, name=changed.name if name is None else name)
    if not NAME.fullmatch(changed.name):
        source = stem if changed.name == base.name else "--name"
        raise UsageError(
            f"{source}: its name {ascii(changed.name)[:120]} cannot name a folder of results: use up to 100 letters,"
            " digits and _ . + -."
        )
    return changed


def in_hardware(benchmark: Benchmark, config: RunConfig) -> RunConfig:
    """Return `config`, in fp32 if it is one of the benchmark's `CPU_CONFIGS` and this machine, without a GPU, has no
    instructions for its number format; that is reported on standard error."""
    for_cpus: Sequence[str] = getattr(benchmark.module(benchmark.configs), "CPU_CONFIGS", ())
    if config.name not in for_cpus or not number_formats.emulated(config.precision, config.device):
        return config
    stdio.message(f"timedrun: {config.name} in fp32: this CPU has no instructions for {config.precision}")
    return replace(config, precision="fp32")


def split(benchmark: Benchmark, text: str, data: str | None = None) -> tuple[str, list[Change]]:
    """Return the name or path at the beginning of `text`, the longest that exists, and the changes after it."""
    known = benchmark.config_names.keys()
    ends = [match.start() for match in re.finditer(r"[+-]|\Z", text)]
    for end in reversed(ends):
        stem = text[:end]
        names = {stem, f"{data or benchmark.spec.default_data}_{stem}"}
        if Path(stem).is_file() if stem.endswith(FILE) else names & known:
            return stem, changes_of(text[end:])
    files = (text[:end] for end in ends if text[:end].endswith(FILE))
    return next(files, text[: ends[0]]), []  # does not exist


def changes_of(text: str) -> list[Change]:
    """Parse changes such as "+ema(half_life=8)-blurpool". Raise UsageError for any other text."""
    changes: list[Change] = []
    try:
        marked = re.sub(r"(?<=[+-])([\w.]+):(?=\w)", rf"\1{_COLON}", text)
        node = ast.parse(f"_{marked}", mode="eval").body
        while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            method: ast.expr = node.right
            given: list[ast.keyword] = []
            if isinstance(node.op, ast.Add) and isinstance(method, ast.Call) and not method.args:
                given, method = method.keywords, method.func
            name = ast.unparse(method).replace(_COLON, ":")
            if not (isinstance(method, ast.Name) or REFERENCE.fullmatch(name)) or None in [key.arg for key in given]:
                raise ValueError
            if isinstance(method, ast.Attribute):
                name_by_user(name)
            values = {keyword.arg or "": _value(keyword.value) for keyword in given}
            changes.insert(0, ("+" if isinstance(node.op, ast.Add) else "-", name, values))
            node = node.left
        if not isinstance(node, ast.Name) or node.id != "_":
            raise ValueError
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise UsageError(f"cannot read the changes '{text[:200]}': {SHAPE}.") from None
    return changes


def _value(node: ast.expr) -> Any:
    """Return a literal; a bare word is a string, or a truth value."""
    if isinstance(node, ast.Name):
        return {"true": True, "false": False}.get(node.id, node.id)
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            part.value = part.value.replace(_COLON, ":")
    value = ast.literal_eval(node)
    return list(value) if isinstance(value, tuple) else value


@cache  # which `timedrun auto` asks for again and again: 0.06 s each
def with_text(config: Config, text: str) -> Config:
    """Return `config` with a change such as "+ema(half_life=8)", "-blurpool" or "optimizer.peak-lr 0.1"."""
    if text[:1] not in "+-" or text.startswith("--"):
        return override(config, shlex.split(text if text.startswith("--") else f"--{text}"))
    for change in changes_of(text):
        config = with_change(config, change)
    return config


def with_change(config: Config, change: Change) -> Config:
    """Return `config` with a method left out, added at its place in the order of REGISTRY, or, if the config has it,
    with the given fields changed; one that timedrun does not ship comes last."""
    sign, name, given = change
    has = {reference_of(type(method)): method for method in config.methods}
    if sign == "-" and name not in has:
        names = ", ".join(has) or "none"
        raise UsageError(f"config {config.name} has no method '{name}'.{nearest(name, has)} It has: {names}.")
    if sign == "-":
        return replace(config, methods=tuple(method for method in config.methods if method != has[name]))
    kind = class_of(name)
    if name in has and not given:
        if name not in REGISTRY:  # named so that the file may name it
            return config
        raise UsageError(f"config {config.name} has the method {name} already; give fields to change: {_fields(kind)}.")
    known = [field.name for field in fields(kind)]
    for field in given.keys() - set(known):
        raise UsageError(f"method {name} has no field '{field}'.{nearest(field, known)} Fields: {_fields(kind)}.")
    values = {field: getattr(has[name], field) for field in known} if name in has else {}
    values |= given
    missing = [field.name for field in fields(kind) if field.default is MISSING and field.name not in values]
    if missing:
        raise UsageError(f"method {name} needs {', '.join(missing)}: give +{name}({missing[0]}=...).")
    has[name] = method_of({"method": name, **values})
    order, kept = [*REGISTRY, *has], [reference_of(type(method)) for method in config.methods]
    if name not in kept:
        later = [other for other in kept if name in REGISTRY and order.index(other) > order.index(name)]
        kept.insert(kept.index(later[0]) if later else len(kept), name)
    return replace(config, methods=tuple(has[name] for name in kept))


def with_method(config: Config, method: Method) -> Config:
    """Return `config` with `method` at its place."""
    return with_change(config, ("+", reference_of(type(method)), json.loads(json.dumps(asdict(method)))))


def _fields(kind: type[Method]) -> str:
    shown = (field.name if field.default is MISSING else f"{field.name}={field.default}" for field in fields(kind))
    return ", ".join(shown) or "none"


def read_config(benchmark: Benchmark, path: Path) -> RunConfig:
    """Load a config from a JSON file, which need not be trusted. Raise UsageError unless it is of this benchmark."""
    values = read_json(path)
    if not isinstance(values, dict):
        raise UsageError(f"{path}: no settings by name, so not a config; `timedrun show --json` prints one.")
    benchmark.require_own(values, path)
    values.pop("tuning", None)  # the record, which `race` reads
    return config_in(benchmark, values, str(path))


def config_in(benchmark: Benchmark, values: dict[str, Any], source: str = "the config") -> RunConfig:
    """Return the config whose dump is `values`. Raises what `load` raises."""
    # The class that has most of these settings; `load` names the ones that do not fit.
    kinds = [type(benchmark.config(name)) for name in benchmark.config_names]
    kind = max(kinds, key=lambda kind: len({field.name for field in fields(kind)} & values.keys()))
    return load(kind, values, source)


def without_places(argv: list[str]) -> list[str]:
    """Return the command line without the options that name paths and addresses of this machine, for publication."""
    private = ("--results", "--data-folder")
    kept: list[str] = []
    words = iter(argv)
    for word in words:
        if word in private:
            next(words, None)  # its value
        elif not word.startswith(tuple(f"{option}=" for option in private)):
            kept.append(PATH.sub("", word))
    return kept
