"""MLCommons' rule files and compliance checker in-process, for logs that are lists of records."""

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import yaml
from mlperf_logging.compliance_checker import mlp_compliance, mlp_parser

CHECKER = Path(mlp_compliance.__file__).parent

Record = dict[str, Any]
Entry = dict[str, Any]


load = yaml.load  # the checker's own use of it is replaced below


@functools.cache
def parsed(text: str) -> Any:
    return load(text, yaml.BaseLoader)


@functools.cache
def compiled(text: str, mode: str) -> CodeType:
    return compile(text, "<rule file>", mode)


def entries(ruleset: str, file: str) -> dict[str, Entry]:
    """The KEY entries of one rule file, by key; the last of two for a key counts, as in the checker."""
    found = parsed((CHECKER / f"training_{ruleset}" / f"{file}.yaml").read_text())
    return {entry["KEY"]["NAME"]: entry["KEY"] for entry in found if "KEY" in entry}


def chain(ruleset: str, benchmark: str, division: str, optimizer: str | None = None) -> dict[str, list[Entry]]:
    """Every entry for each key, in the order in which the rule files are read: the last one's checks count."""
    files = ["common", f"{division}_common", f"{division}_{benchmark}"]
    files += [f"{division}_{benchmark}_{optimizer}"] if optimizer else []
    values = {}
    for file in files:
        # A declared defect: open GPT-3 has a rule file from 4.0.0 on only.
        missing = file == "open_gpt3" and not (CHECKER / f"training_{ruleset}" / f"{file}.yaml").exists()
        for key, entry in entries("4.0.0" if missing else ruleset, file).items():
            values.setdefault(key, []).append(entry)
    return values


def tensors(ruleset: str, benchmark: str) -> list[str]:
    """The tensors that closed_<benchmark>.yaml wants named."""
    for entry in parsed((CHECKER / f"training_{ruleset}" / f"closed_{benchmark}.yaml").read_text()):
        if "END" in entry:
            return re.findall(r"""["']([^"'\[\]]+)["']""", entry["END"]["CHECK"].split("==")[1])
    return []


@contextmanager
def checker_in(folder: Path) -> Iterator[None]:
    """MLCommons' checker reads the rule files of `folder`; each is parsed, and its code compiled, once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mlp_compliance, "__file__", str(folder / "mlp_compliance.py"))
        patch.setattr(mlp_compliance.yaml, "load", lambda file, Loader: parsed(file.read()))
        for name, run in (("eval", eval), ("exec", exec)):
            called = functools.partial(lambda run, mode, text, *scopes: run(compiled(text, mode), *scopes), run, name)
            patch.setattr(mlp_compliance, name, called, raising=False)
        yield


def accepts(ruleset: str, records: list[Record]) -> bool:
    """Whether MLCommons' compliance checker passes the log; a traceback is a refusal."""
    form = getattr(mlp_parser, "ruleset_" + ruleset.replace(".", "")).LogLine
    lines = [
        form(r["key"], float(r["time_ms"]), r["key"], {"value": r["value"], "metadata": r["metadata"]}, number)
        for number, r in enumerate(records)
    ]
    mlp_compliance.enqueued_configs.clear()  # a traceback leaves some behind
    checker = mlp_compliance.make_checker("training", ruleset, False, False)
    try:
        checker.check_loglines(lines, f"training_{ruleset}/common.yaml")
    except Exception:
        return False
    return not checker.has_messages()
