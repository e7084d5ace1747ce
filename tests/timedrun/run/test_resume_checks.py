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


CLOSED = {"submission": SubmissionConfig(division="closed")}
REACHED, MISSED, SPENT = (
    {"status": "success"},
    {"status": "aborted", "reason": "target not reached"},
    {"status": "aborted", "reason": "budget spent"},
)
UNRECORDED = {"provenance": json.dumps({key: value for key, value in ORIGIN.items() if key != "threads"})}
NOW_1 = "the number of CPU threads of a rank .--threads or OMP_NUM_THREADS. was 1 and is now 2"
EDITED = {"edited": True}
DIGEST = "the digest of the settings in the log was [0-9a-f]{64} and is now [0-9a-f]{64}"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ({"changes": {"ranks": 4}}, "the number of ranks was 2 and is now 4. Nothing was changed"),
        ({"changes": {"threads": 2}}, f"{NOW_1}. Nothing was changed"),
        ({"changes": {"number_of_nodes": "1"}}, "the number of nodes was 2 and is now 1. Nothing"),
        ({"changes": {"system_name": "8xH100"}}, "the system was 2xCPU and is now 8xH100. Nothing"),
        (
            {"changes": {"other_software_stack": {"python": "3.11", "cuda": "13"}}},
            "the version of cudnn was 9 and is now -; the version of cuda was - and is now 13. Nothing",
        ),
        (
            {"changes": {"image_digest": None}},
            "the container image .TIMEDRUN_IMAGE_DIGEST. was sha256:a and is now None",
        ),
        (
            {"changes": {"difference": "d2"}},
            "the digest of its source.s differences from the commit was d1 and is now d2",
        ),
        ({"now": {"seed": 2}}, "seed was 1 and is now 2. Nothing"),  # which a config's digest leaves out
        ({"now": {"global_batch": 8}}, "global_batch was 4 and is now 8. Nothing"),
        ({"now": OTHER_TARGET}, "evaluation.target was 0.9 and is now 0.5. Nothing"),
        # A config that is edited beside the log does not change what the run is.
        (EDITED | {"now": {"seed": 7}}, "seed was 1 and is now 7. Nothing"),
        (EDITED | {"now": {"global_batch": 8}}, DIGEST),
        (EDITED | {"now": {"seed": 7, "global_batch": 8}}, f"seed was 1 and is now 7; {DIGEST}"),
        ({"stop": REACHED}, "it reached its target"),
        ({"stop": MISSED}, "it ended by itself .target not reached"),
        ({"stop": SPENT}, "it ended by itself .budget spent."),
        ({"begun": CLOSED}, "a run of the closed division may not be resumed"),
        (EDITED | {"begun": CLOSED, "now": {"submission": SubmissionConfig()}}, "a run of the closed division may not"),
        (
            {"files": UNRECORDED | {"system": "{}"}},
            r".*THREADS\) was not recorded and is now 1; .*nodes was not recorded",
        ),
        *(
            ({"files": {name: content}}, f".*{name}.json.*restore the file as the run wrote it")
            for name, content in (("config", "{"), ("provenance", "[]"), ("system", "{"))
        ),
    ],
)
def test_another_launch_machine_source_config_or_end_is_refused(paths, settings, what, words):
    begun = replace(settings, **what.get("begun", {}))
    now = replace(begun, **what.get("now", {}))
    started(paths, begun, stop=what.get("stop"))
    if "edited" in what:
        paths.config.write_text(json.dumps(config.dump(now)))
    for name, content in what.get("files", {}).items():
        getattr(paths, name).write_text(content)
    before = tree(paths.folder)
    with pytest.raises(TimedrunError, match=f"the run cannot be resumed(: |, since .*){words}"):
        require(now, paths, **what.get("changes", {}))
    assert tree(paths.folder) == before


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
