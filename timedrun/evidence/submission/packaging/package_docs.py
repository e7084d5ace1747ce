"""Texts of a package: README files and the description of an implementation."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from judging.pages.score_table import table
from mlevents import keys
from mlevents.rounds import Ruleset
from mlevents.terminal_escape import printable
from timedrun.evidence.submission.packaging.package_scripts import IMPLEMENTATION, run_file
from timedrun.evidence.submission.packaging.result_folder import NONE_RECORDED, ResultFolder
from timedrun.runner.storage.source_copies import SOURCE

OF_ITS_MODEL = (
    *("starting_weights_filename", "weight_transformations", "weight_data_types", "input_data_types", "retraining"),
    "precision",
)
"""Keys of an implementation's description that only its source answers, unless the run is of a config."""
TRADEMARK = "MLPerf is a trademark of the MLCommons Association."


def package_readme(
    sets: Sequence[ResultFolder], rules: Ruleset, provenance: Mapping[str, Any], implementation: str
) -> str:
    of_system = "config of every run, environment, scripts that repeat the runs"
    if sets[0].is_external:
        of_system = "README and scripts"
    submitter = sets[0].submitter
    benchmarks = list(dict.fromkeys(runs.benchmark for runs in sets))
    benchmark = " and ".join(benchmarks)
    data = " and ".join(dict.fromkeys(runs.score.dataset for runs in sets))
    division = " and ".join(dict.fromkeys(runs.score.division for runs in sets))
    if sets[0].score.demonstration:
        title = f"# Demonstration of {benchmark} on {data}, by {submitter}"
        kind = (
            f"This is a demonstration. It has the layout of an MLPerf Training package, but was trained on {data} to "
            f"its own target, not on the data and to the target of MLPerf's {benchmark}. Its times are not MLPerf "
            "results and must not be compared with them."
        )
    elif not rules.checker:
        title = f"# {submitter}: {benchmark}, {division} division"
        kind = (
            f"This package has the layout of an MLPerf Training package, but no round of MLPerf has the task "
            f"{benchmark}. Its times are not MLPerf results and must not be compared with them."
        )
    else:
        title = f"# {submitter}: {benchmark}, MLPerf Training {rules.round}, {division} division"
        kind = (
            f"A package for the {division} division of MLPerf Training {rules.round}, created by its submitter. "
            "MLCommons has neither received nor reviewed it."
        )
    official = (
        f"MLCommons' own check of this folder: `python -m mlperf_logging.package_checker . training {rules.name}` with "
        f"the release\n`mlperf-logging=={rules.checker}`; it may write into the folder it checks, so run it on a copy."
        if rules.checker
        else "MLCommons' tools have no rules for this benchmark."
    )
    unknown = "no ledger of announced runs, so the number of runs is unknown"
    announced = (f"- {runs.system}, {runs.benchmark}: {'; '.join(runs.announced) or unknown}.\n" for runs in sets)
    return f"""{title}

{kind}

```
{_scores(sets)}
```

- `results/<system>/<benchmark>/result_N.txt`: the log of each run, unchanged.
- `systems/<system>.json`: the system description.
- `benchmarks/<benchmark>/implementations/<system>/`: {of_system}.
- `benchmarks/<benchmark>/implementations/{implementation}/`: the source code. {_source_text(provenance)}
- `manifest.json`: metadata, the verdicts of the checkers and the SHA-256 of every file.
{_left_out(sets)}{"".join(announced)}
{official}

## Settings

{chr(10).join(f"### {runs.system}, {runs.benchmark}{chr(10)}{chr(10)}{_settings(runs)}" for runs in sets)}

{TRADEMARK}
"""


def system_readme(result: ResultFolder, provenance: Mapping[str, Any]) -> str:
    """Return README.md of one system: how to repeat its runs."""
    kind = "demonstration" if result.score.demonstration else "results"
    config = printable(result.score.label or result.score.config_name or "unnamed").replace("`", "'")
    code = f"Code of data preparation, model, initialisation, optimizer and evaluation is in\n`../{IMPLEMENTATION}/`."
    folder = "[FOLDER]" if result.is_command else "[DATA_FOLDER]"
    if result.is_command:
        names = ", ".join(f"`{name}`" for name in result.source) or "none: it names no script"
        code = f"The source of the command, as far as timedrun found it, is in `{SOURCE}/` ({names}); timedrun runs it."
    return f"""# {result.system}: {result.benchmark} on {result.score.dataset} ({kind}, unverified)

```
{_scores([result])}
```

Config `{config}`, {result.ranks} rank{"s" if result.ranks > 1 else ""}; methods:
{"; ".join(result.methods) or "none"}.
Container image: {_joined(result.recorded("image_digest"))}. Data: {_joined(result.recorded("data"))}.
All settings of run N, including the seed, are in `runs/run_N/config.json`; installed versions are in `environment.txt`.

{_settings(result)}
    bash setup.sh                                     # once: install the source and the versions of the runs
    bash init_datasets.sh {folder:<27} # once: check or index the data
    bash run_and_time.sh NEW_FOLDER {folder:<17} # repeat the {len(result.records)} runs, results in NEW_FOLDER

{code} {_source_text(provenance)}
"""


def implementation_description(
    result: ResultFolder, provenance: Mapping[str, Any], implementation: str
) -> dict[str, Any]:
    """Return <system>_<implementation>.json, the code and settings that ran on a system. The first five keys are those
    of the submission rules (submission_rules.adoc, "model-info_<implementation_id>.json metadata"), spelt as in
    MLCommons' inference submission checker, the only tool that reads them; Training's rules name no keys."""
    config = result.configs[0]
    precision = str(config.get("precision", "fp32"))
    from_checkpoint = config.get("start") == "checkpoint"
    return {
        "starting_weights_filename": "initial_checkpoint/ of the data folder" if from_checkpoint else "none: random",
        "weight_transformations": "none",
        "weight_data_types": "fp32" if precision == "fp32" else f"fp32, computed with in {precision}",
        "input_data_types": precision,
        "retraining": "none: the timed run is the entire training",
        **origin(result),
        "implementation": implementation,
        "division": result.score.division,
        "demonstration": result.score.demonstration,
        "dataset": result.score.dataset,
        "quality_target": result.score.target,
        "methods": result.methods,
        "precision": precision,
        "global_batch_size": result.records[0].value(keys.GLOBAL_BATCH_SIZE),
        "ranks": result.ranks,
        "source": dict(provenance),
        **(dict.fromkeys(OF_ITS_MODEL, "see the source") if result.is_command or result.is_external else {}),
        **({"ranks": None} if result.is_external else {}),
    }


def origin(result: ResultFolder) -> dict[str, Any]:
    """Return the origin of one system's results, as recorded by its runs; lists hold the distinct values."""
    return {
        "system": result.system,
        "benchmark": result.benchmark,
        "results": [record.path.name for record in result.records],
        "left_out": result.left_out,
        "config_name": result.score.config_name,
        "config_digest": result.logged[keys.CONFIG_DIGEST],
        "commits": result.recorded("commit"),
        "dirty": result.recorded("dirty"),
        "images": result.recorded("image_digest"),
        "data": result.recorded("data"),
        "environments_sha256": list(
            dict.fromkeys(
                hashlib.sha256(result.contents[run.environment]).hexdigest() for run in result.paths if result.contents
            )
        ),
    }


def _scores(sets: Sequence[ResultFolder]) -> str:
    """Return the table of scores as the logs alone yield it: the label of a race's side is beside them."""
    return table([replace(runs.score, label="") for runs in sets]).rstrip()


def _source_text(provenance: Mapping[str, Any]) -> str:
    if provenance["commit"] == "unknown":
        return "Its commit is unknown."
    changed = " with local changes, which the packaged files include" if provenance["dirty"] else ""
    return f"Packaged from commit {provenance['commit']}{changed}."


def _left_out(sets: Sequence[ResultFolder]) -> str:
    return "".join(
        f"- {runs.system}: {len(runs.left_out)} more runs were made than a submission of {runs.benchmark} contains. As "
        "the rules require, this package holds the window of consecutive runs with the median score; not included: "
        f"{', '.join(runs.left_out)}.\n"
        for runs in sets
        if runs.left_out
    )


def _settings(result: ResultFolder) -> str:
    """Return what a command is and how it is read, or the command that shows the settings of a config, as text."""
    if result.is_external:
        return "The settings are those that the logs record, and those of the code.\n"
    if result.is_command:
        text = "\n".join(map(printable, run_file(result.configs[0]).splitlines())).replace("`", "'")
        return f"The command, and what timedrun reads of its output:\n\n```\n{text}\n```\n"
    files = (
        f"benchmarks/{result.benchmark}/implementations/{result.system}/runs/{result.paths[0].side.name}/config.json"
    )
    shown = f"timedrun show {result.package_name} --data {result.score.dataset} --diff baseline {files}"
    return f"Settings that differ from the benchmark's baseline: `{printable(shown)}`\n"


def _joined(values: Sequence[Any]) -> str:
    texts = [
        f"{value.get('name')} ({value.get('sha256') or value.get('of') or NONE_RECORDED})"
        if isinstance(value, dict)
        else str(value)
        for value in values
    ]
    return "; ".join(map(printable, texts))
