"""Reports of ranks to the launcher that started them, timedrun's or torchrun's."""

from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from judging.ground.errors import ExitCode, TimedrunError
from timedrun.distributed import status_files
from timedrun.distributed.launch_env import STATUS_FILES


def test_reports_are_read_and_an_incomplete_one_is_ignored(tmp_path, monkeypatch):
    status = status_files.StatusFiles(tmp_path)
    status.expect(range(2, 4))
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv(STATUS_FILES, str(tmp_path))
    status_files.report_begun(12)
    assert status.begun(range(2, 4)) and not status.begun(range(2, 3))
    assert status.read(3, "number") == {"number": 12}
    status.path(3, "number").write_text('{"number": 1')  # the disk was full
    assert status.read(3, "number") == status.read(2, "number") == {}
    monkeypatch.setenv(STATUS_FILES, str(tmp_path / "removed"))
    assert not status_files.report_error(ExitCode.ERROR, "gone")


def test_torchruns_store_keeps_the_result_number_for_the_next_attempt(monkeypatch):
    monkeypatch.delenv(STATUS_FILES, raising=False)
    assert status_files.agent_number() is None
    agent = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=30), wait_for_workers=False)
    variables = {"RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(agent.port)}
    for name, text in (variables | {"TORCHELASTIC_USE_AGENT_STORE": "True"}).items():
        monkeypatch.setenv(name, text)
    assert status_files.agent_number() is None
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with pytest.raises(TimedrunError, match="restarted by torchrun.*nothing was written"):
        status_files.agent_number()
    status_files.report_begun(3)
    assert status_files.agent_number() == 3
