"""A run is resumed only with the settings, source and machine of its start; differences are named."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from judging.ground.errors import TimedrunError
from judging.ground.result_files import ResultPaths
from mlevents import keys
from mlevents.runlog.protocol import Protocol
from tests.timedrun.conftest import SPEC
from tests.timedrun.runner.run.killed_run import ALONE
from timedrun.runner import config
from timedrun.runner.config import EvaluationConfig, RunConfig, SubmissionConfig
from timedrun.runner.provenance import source
from timedrun.runner.run import origin, worker
from timedrun.runner.run.run_info import RunInfo, settings_of, submission_of
from timedrun.runner.run.worker import LaunchOptions

OTHER_TARGET = {"evaluation": EvaluationConfig(target=0.5, every=2, first=2)}
UNSTARTED = {"status": "aborted", "reason": ""}
FAILED = {"status": "aborted", "reason": "rank 1, step 7: DataError: a file is gone"}


def started(paths: ResultPaths, settings: RunConfig, *, stop: dict[str, Any] | None = None) -> None:
    """A run that began; killed, unless `stop` says how it ended."""
    log = worker.claim(settings, LaunchOptions(paths=paths), ALONE, "1xCPU")
    if stop == UNSTARTED:
        log.close(reason="the data are missing")
        return
    info: RunInfo = {"train_samples": 1, "eval_samples": 1, "hyperparameters": {}}
    Protocol(log).describe(submission_of(SPEC, settings, "1xCPU") | settings_of(settings, info))
    log.start(keys.RUN_START)
    if stop is not None:
        log.end(keys.RUN_STOP, **stop)
    log.close()


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ResultPaths:
    """Those of a result, while the source is dirty and all checkpoints are there."""
    state = {"commit": "abc", "dirty": True, "difference": "d1"}
    monkeypatch.setattr(source, "provenance", lambda root: state)
    monkeypatch.setattr(worker, "newest_on_all", MagicMock())
    monkeypatch.delenv(origin.IMAGE_DIGEST, raising=False)
    return ResultPaths(tmp_path, 0)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def require(settings: RunConfig, paths: ResultPaths, **changes: Any) -> None:
    """Resume the run, on a machine with `changes` of what is recorded of it."""
    known = {"host_memory_capacity": "2 GiB"} | changes
    with pytest.MonkeyPatch.context() as patch:
        for name in ("at_start", "describe"):
            real = getattr(origin, name)
            patch.setattr(origin, name, lambda *of, real=real: {key: known.get(key, x) for key, x in real(*of).items()})
        worker.load_checkpoint(settings, LaunchOptions(paths=paths), ALONE, "1xCPU")


@pytest.mark.parametrize("stop", [None, {"status": "aborted", "reason": "stopped by signal"}, FAILED])
def test_a_killed_stopped_or_failed_run_may_go_on(paths, toy_config, stop):
    started(paths, toy_config(), stop=stop)
    before = tree(paths.folder)
    require(toy_config(), paths)
    assert tree(paths.folder) == before


CLOSED = {"submission": SubmissionConfig(division="closed")}
REACHED, MISSED, SPENT = (
    {"status": "success"},
    {"status": "aborted", "reason": "target not reached"},
    {"status": "aborted", "reason": "budget spent"},
)
EDITED = {"edited": True}
DIGEST = "the digest of the settings in the log was [0-9a-f]{64} and is now [0-9a-f]{64}"


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ({"changes": {"ranks": 4}}, "the number of ranks was 1 and is now 4. Nothing was changed"),
        ({"changes": {"threads": 99}}, "the number of CPU threads .*OMP_NUM_THREADS. was [0-9]+ and is now 99"),
        ({"changes": {"number_of_nodes": "2"}}, "the number of nodes was 1 and is now 2. Nothing"),
        ({"changes": {"system_name": "8xH100"}}, "the system was 1xCPU and is now 8xH100. Nothing"),
        ({"changes": {"host_processor_model_name": "x"}}, "the processor was .+ and is now x. Nothing"),
        ({"changes": {"other_software_stack": {"cuda": "13"}}}, ".*python was .* is now -; .*cuda was - and is now 13"),
        ({"changes": {"image_digest": "sha256:b"}}, "the container image .*IMAGE_DIGEST. was None and is now sha256:b"),
        ({"changes": {"difference": "d2"}}, "the digest of its source.s differences .* was d1 and is now d2"),
        ({"now": {"seed": 2}}, "seed was 1 and is now 2. Nothing"),  # which a config's digest leaves out
        ({"now": OTHER_TARGET}, "evaluation.target was 0.9 and is now 0.5. Nothing"),
        # A config that is edited beside the log does not change what the run is.
        (EDITED | {"now": {"seed": 7, "global_batch": 8}}, f"seed was 1 and is now 7; {DIGEST}"),
        ({"stop": UNSTARTED}, "its clock had not started. Nothing was changed; start another run under another number"),
        ({"gone": "log"}, "its log does not exist"),
        ({"gone": "config"}, r".*config\.json"),
        ({"stop": REACHED}, "it reached its target"),
        ({"stop": MISSED}, "it ended by itself .target not reached"),
        ({"stop": SPENT}, "it ended by itself .budget spent."),
        ({"begun": CLOSED}, "a run of the closed division may not be resumed"),
        (EDITED | {"begun": CLOSED, "now": {"submission": SubmissionConfig()}}, "a run of the closed division may not"),
        ({"files": {"provenance": "{}", "system": "{}"}}, r".*THREADS\) was not recorded .*nodes was not recorded"),
        *(
            ({"files": {name: content}}, f".*{name}.json.*restore the file as the run wrote it")
            for name, content in (("config", "{"), ("provenance", "[]"), ("system", "{"))
        ),
    ],
)
def test_another_launch_machine_source_config_or_end_is_refused(paths, toy_config, what, words):
    begun = toy_config(**what.get("begun", {}))
    now = replace(begun, **what.get("now", {}))
    started(paths, begun, stop=what.get("stop"))
    if "edited" in what:
        paths.config.write_text(json.dumps(config.dump(now)))
    for name, content in what.get("files", {}).items():
        getattr(paths, name).write_text(content)
    if "gone" in what:
        getattr(paths, what["gone"]).unlink()
    before = tree(paths.folder)
    with pytest.raises(TimedrunError, match=f"the run cannot be resumed(: |, since .*){words}"):
        require(now, paths, **what.get("changes", {}))
    assert tree(paths.folder) == before
