"""No process and no file is left behind, however the supervisor or a rank ends."""

import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from tests.timedrun.distributed.launched_ranks import START, alive, place, supervise, until
from timedrun.distributed.launcher import Supervisor
from timedrun.errors import TimedrunError

pytestmark = [pytest.mark.processes, pytest.mark.timeout(60)]


def test_ranks_their_workers_and_the_folder_of_signs_go_with_a_killed_supervisor(tmp_path: Path) -> None:
    code = START + textwrap.dedent(
        f"""
        from timedrun.distributed import parent_death_signal
        parent_death_signal.end_with(int(os.environ["TIMEDRUN_LAUNCHED"]))
        worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        (Path({str(tmp_path)!r}) / f"rank_{{rank}}.part").write_text(f"{{os.getpid()}} {{worker.pid}}")
        (Path({str(tmp_path)!r}) / f"rank_{{rank}}.part").rename(Path({str(tmp_path)!r}) / f"rank_{{rank}}")
        time.sleep(60)
        """
    )
    script = (
        "import sys\nfrom timedrun.distributed.launch_env import LaunchEnv\n"
        "from timedrun.distributed.launcher import Supervisor\n"
        f"import tempfile\ntempfile.tempdir = {str(tmp_path / 'signs')!r}\n"
        f"Supervisor([sys.executable, '-c', {code!r}], LaunchEnv('none', 0, 2, 0, 2, 1, 0, '127.0.0.1', 0)).run()"
    )
    (tmp_path / "signs").mkdir()
    process = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    try:
        until(lambda: all((tmp_path / f"rank_{rank}").exists() for rank in (0, 1)))
        told = " ".join((tmp_path / f"rank_{rank}").read_text() for rank in (0, 1))
        ranks = [psutil.Process(int(word)) for word in told.split()]
        assert len(ranks) == 4
        process.kill()
        process.wait()
        until(lambda: not any(alive(rank) for rank in ranks))
        until(lambda: not list((tmp_path / "signs").iterdir()))
    finally:
        process.kill()


def test_a_workers_process_ends_with_its_rank(tmp_path: Path) -> None:
    supervise(
        f"""
        worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        (Path({str(tmp_path)!r}) / "worker").write_text(str(worker.pid))
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        place=place(1),
    )
    worker = int((tmp_path / "worker").read_text())
    until(lambda: not psutil.pid_exists(worker) or not alive(psutil.Process(worker)))


def test_a_program_that_cannot_be_started_is_an_error_in_words_and_leaves_no_rank() -> None:
    with pytest.raises(TimedrunError, match="rank 0 could not be started"):
        Supervisor(["/nowhere/python"], place(2)).run()
