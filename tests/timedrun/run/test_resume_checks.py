"""A run is resumed only with the settings, source and machine of its start; differences are named."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from judging.ground.errors import TimedrunError
from judging.ground.result_files import ResultPaths
from mlevents import keys
from mlevents.runlog import RunLog
from mlevents.runlog.protocol import Protocol
from tests.timedrun.run.killed_run import MakeConfig
from timedrun import config
from timedrun.benchmark import find
from timedrun.config import EvaluationConfig, RunConfig, SubmissionConfig
from timedrun.run.resume_checks import require_resumable
from timedrun.run.run_info import submission_of

ORIGIN = {"ranks": 2, "threads": 1, "commit": "abc", "dirty": True, "difference": "d1", "image_digest": "sha256:a"}
SYSTEM = {
    "system_name": "2xCPU",
    "number_of_nodes": "2",
    "host_processor_model_name": "Example CPU",
    "accelerator_model_name": "N/A",
    "framework": "PyTorch 2.13",
    "other_software_stack": {"python": "3.11", "cudnn": "9"},
}
OTHER_TARGET = {"evaluation": EvaluationConfig(target=0.5, every=2, first=2)}


def started(paths: ResultPaths, settings: RunConfig, *, stop: dict[str, Any] | None = None) -> None:
    """A run of two ranks and what it leaves beside its log; killed, unless `stop` says how it ended."""
    paths.side.mkdir(parents=True)
    paths.config.write_text(json.dumps(config.dump(settings)))
    paths.provenance.write_text(json.dumps({**ORIGIN, "command": "timedrun run", "data": None}))
    paths.system.write_text(json.dumps({**SYSTEM, "host_memory_capacity": "1 GiB"}))
    log = RunLog(paths.log)
    Protocol(log).describe(submission_of(find("image_classification").spec, settings, "2xCPU"))
    log.event(keys.SEED, settings.seed)
    log.event(keys.CONFIG_DIGEST, config.digest(settings))
    log.start(keys.RUN_START)
    if stop is not None:
        log.end(keys.RUN_STOP, **stop)


@pytest.fixture
def paths(tmp_path: Path) -> ResultPaths:
    return ResultPaths(tmp_path, 0)


@pytest.fixture
def settings(toy_config: MakeConfig) -> RunConfig:
    return toy_config()


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def require(settings: RunConfig, paths: ResultPaths, **changes: Any) -> None:
    known = {"command": "timedrun run --resume", "host_memory_capacity": "2 GiB"}
    origin, system = ({**values, **known, **changes} for values in (ORIGIN, SYSTEM))
    require_resumable(settings, paths, origin=origin, system=system)


@pytest.mark.parametrize("reason", [None, "stopped by signal", "rank 1, step 7: DataError: a file is gone"])
def test_a_killed_stopped_or_failed_run_may_go_on(paths, settings, reason):
    started(paths, settings, stop=None if reason is None else {"status": "aborted", "reason": reason})
    before = tree(paths.folder)
    require(settings, paths)
    assert tree(paths.folder) == before


@pytest.mark.parametrize(
    ("other", "changes", "words"),
    [
        ({}, {"ranks": 4}, "the number of ranks was 2 and is now 4"),
        ({}, {"threads": 2}, "the number of CPU threads of a rank .--threads or OMP_NUM_THREADS. was 1 and is now 2"),
        ({}, {"number_of_nodes": "1"}, "the number of nodes was 2 and is now 1"),
        ({}, {"system_name": "8xH100"}, "the system was 2xCPU and is now 8xH100"),
        (
            {},
            {"other_software_stack": {"python": "3.11", "cuda": "13"}},
            "the version of cudnn was 9 and is now -; the version of cuda was - and is now 13",
        ),
        ({}, {"image_digest": None}, "the container image .TIMEDRUN_IMAGE_DIGEST. was sha256:a and is now None"),
        ({}, {"difference": "d2"}, "the digest of its source.s differences from the commit was d1 and is now d2"),
        ({"seed": 2}, {}, "seed was 1 and is now 2"),  # which a config's digest leaves out
        ({"global_batch": 8}, {}, "global_batch was 4 and is now 8"),
        (OTHER_TARGET, {}, "evaluation.target was 0.9 and is now 0.5"),
    ],
)
def test_another_launch_machine_source_or_config_is_refused(paths, settings, other, changes, words):
    started(paths, settings)
    before = tree(paths.folder)
    with pytest.raises(TimedrunError, match=f"cannot be resumed: {words}. Nothing was changed"):
        require(replace(settings, **other), paths, **changes)
    assert tree(paths.folder) == before


def test_a_run_that_did_not_record_how_it_was_started_is_refused(paths, settings):
    started(paths, settings)
    paths.provenance.write_text(json.dumps({key: value for key, value in ORIGIN.items() if key != "threads"}))
    paths.system.write_text("{}")
    words = r"OMP_NUM_THREADS\) was not recorded and is now 1; .*nodes was not recorded"
    with pytest.raises(TimedrunError, match=words):
        require(settings, paths)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": 7}, "resumed: seed was 1 and is now 7. Nothing"),
        ({"global_batch": 8}, "the digest of the settings in the log was [0-9a-f]{64} and is now [0-9a-f]{64}."),
        ({"seed": 7, "global_batch": 8}, "seed was 1 and is now 7; the digest of the settings in the log was"),
    ],
)
def test_a_config_that_is_edited_beside_the_log_does_not_change_what_the_run_is(paths, settings, changes, words):
    started(paths, settings)
    edited = replace(settings, **changes)
    paths.config.write_text(json.dumps(config.dump(edited)))
    with pytest.raises(TimedrunError, match=words):
        require(edited, paths)


@pytest.mark.parametrize(
    ("division", "edited", "stop", "words"),
    [
        ("open", False, {"status": "success"}, "it reached its target"),
        (
            "open",
            False,
            {"status": "aborted", "reason": "target not reached"},
            "it ended by itself .target not reached",
        ),
        ("open", False, {"status": "aborted", "reason": "budget spent"}, "it ended by itself .budget spent."),
        ("closed", False, None, "closed division may not be resumed"),
        ("closed", True, None, "closed division may not be resumed"),  # its config was made open
    ],
)
def test_a_run_that_ended_or_is_of_the_closed_division_is_refused(paths, settings, division, edited, stop, words):
    begun = replace(settings, submission=SubmissionConfig(division=division))
    started(paths, begun, stop=stop)
    now = settings if edited else begun
    paths.config.write_text(json.dumps(config.dump(now)))
    with pytest.raises(TimedrunError, match=words):
        require(now, paths)


def test_a_run_that_never_started_or_whose_files_are_gone_is_refused(paths, settings):
    with pytest.raises(TimedrunError, match="its log does not exist"):
        require(settings, paths)
    RunLog(paths.log).close(reason="the data are missing")
    again = "its clock had not started. Nothing was changed; start another run under another number"
    with pytest.raises(TimedrunError, match=again):
        require(settings, paths)
    paths.log.unlink()
    started(paths, settings)
    paths.config.unlink()
    with pytest.raises(TimedrunError, match=r"config\.json"):
        require(settings, paths)


@pytest.mark.parametrize(("name", "content"), [("config", "{"), ("provenance", "[]"), ("system", "{")])
def test_a_broken_file_is_named_with_a_remedy(paths, settings, name, content):
    started(paths, settings)
    path: Path = getattr(paths, name)
    path.write_text(content)
    before = tree(paths.folder)
    with pytest.raises(TimedrunError, match=f"cannot be resumed.*{path}.*restore the file as the run wrote it"):
        require(settings, paths)
    assert tree(paths.folder) == before
