"""`timedrun bench loader`: output, interleaving of passes and measurements."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from judging.ground.errors import DataError, ExitCode
from timedrun.analysis.loader_benchmark import LoaderPass, held_bytes, interleaved
from timedrun.cli import main
from timedrun.distributed.process_times import cpu_seconds

needs_memory = pytest.mark.skipif(
    held_bytes() is None, reason="this system does not tell the memory of processes by kind"
)


PACKAGE = """
from timedrun.benchmark import BenchmarkSpec
SPEC = BenchmarkSpec(title="toy", mlperf_benchmark="resnet", ruleset="2.0.0", default_data="toy")
"""
CONFIGS = '''
from timedrun.config import EvaluationConfig, OptimizerConfig, RunConfig
def toy_baseline() -> RunConfig:
    """A toy."""
    return RunConfig(benchmark="{name}", name="toy_baseline", dataset="toy", global_batch=8,
                     optimizer=OptimizerConfig(kind="sgd", peak_lr=0.1), evaluation=EvaluationConfig(target=0.5))
'''
BENCH = """
from timedrun.analysis.loader_benchmark import LoaderComparison, LoaderPass, LoaderRates
def loader(config, options):
    def row(name, *seconds):
        passes = tuple(LoaderPass(options.count, one, 2 * one, 3 << 20) for one in seconds)
        return LoaderRates(name, "disk", 32, "images", options.workers, options.workers, passes[0], passes[1:])
    return LoaderComparison(
        [row("slow", 9.0, 1.0, 2.0, 4.0), row("fast", 9.0, 0.5, 1.0, 1.0)],
        missing={"absent": "it is not installed."},
        notes=["a note"],
        references=[("slow", "disk")],
    )
"""


@pytest.fixture
def toy(make_package: Callable[[str, str], str], tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """The name of a benchmark package whose loaders take times that are known."""
    name = make_package(f"toy_{abs(hash(request.node.name))}", PACKAGE)
    (tmp_path / name / "configs.py").write_text(CONFIGS.format(name=name))
    (tmp_path / name / "bench.py").write_text(BENCH)
    return name


def test_the_table_has_rates_ratios_and_what_was_not_measured(toy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "loader", toy, "--count", "100", "--workers", "2"]) == ExitCode.OK
    printed = capsys.readouterr().out
    (fast,) = [line for line in printed.splitlines() if line.startswith("fast  ")]
    words = fast.split()
    assert words[2:4] == ["2", "100"]  # two workers; median of 200, 100 and 100 a second
    assert "100 to 200" in fast and "2.00 (2.00 to 4.00)" in fast
    assert "absent: not measured: it is not installed." in printed


def test_the_json_has_all_measurements_and_no_local_path(toy: str, tmp_path: Path) -> None:
    out = tmp_path / "rates.json"
    command = ["bench", "loader", toy, "--count", "100", "--stores", str(tmp_path / "stores"), "--out", str(out)]
    assert main([*command, "--images", str(tmp_path)]) == ExitCode.OK
    text = out.read_text()
    assert str(tmp_path) not in text
    values = json.loads(text)
    slow = values["rows"][0]
    assert slow["images_per_second"] == {"median": 50.0, "lowest": 25.0, "highest": 100.0, "all": [100.0, 50.0, 25.0]}
    assert slow["images_per_cpu_second"]["median"] == 25.0
    assert slow["first_pass"]["seconds"] == 9.0 and slow["peak_bytes"] == 3 << 20
    assert values["missing"] == {"absent": "it is not installed."}
    assert values["command"].startswith(f"timedrun bench loader {toy} baseline")
    assert "--count 100" in values["command"] and "--stores STORES" in values["command"]


def test_without_loaders_or_a_place_for_the_output_nothing_is_measured(
    toy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = tmp_path / toy / "bench.py"
    bench.write_text("def loader(config, options): raise AssertionError('measured')")
    assert main(["bench", "loader", toy, "--out", str(tmp_path / "nowhere" / "rates.json")]) == ExitCode.USAGE
    assert "nothing was measured" in capsys.readouterr().err
    bench.unlink()
    assert main(["bench", "loader", toy]) == ExitCode.USAGE
    assert "no module bench" in capsys.readouterr().err


def a_pass(samples: int = 10) -> LoaderPass:
    return LoaderPass(samples, 1.0, 1.0, None)


def test_every_repeat_runs_all_in_a_new_order_and_the_first_does_not_count() -> None:
    seen: list[tuple[str, int]] = []

    def one_pass(name: str, repeat: int) -> LoaderPass:
        seen.append((name, repeat))
        return a_pass()

    names = ["a", "b", "c", "d"]
    rates = interleaved(names, 5, one_pass)
    rounds = [seen[begin : begin + 4] for begin in range(0, 24, 4)]
    assert [{repeat for _, repeat in turns} for turns in rounds] == [{0}, {1}, {2}, {3}, {4}, {5}]
    orders = {tuple(name for name, _ in turns) for turns in rounds}
    assert all(sorted(order) == names for order in orders) and len(orders) > 1
    assert all(len(counted) == 5 for _, counted in rates)


def test_a_loader_that_loses_samples_is_an_error_and_no_rate() -> None:
    with pytest.raises(DataError, match="b loaded 9 samples in a pass of 10"):
        interleaved(["a", "b"], 1, lambda name, _: a_pass(9 if name == "b" else 10))


@pytest.mark.processes
@needs_memory
def test_cpu_time_and_memory_of_a_process_that_still_runs_are_seen() -> None:
    program = """
import time
held = b'x' * (64 << 20)
while time.process_time() < 0.2: pass
print('ready', flush=True)
input()
"""
    before, used = held_bytes(), cpu_seconds()
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        during, spent = held_bytes(), cpu_seconds() - used
        child.kill()
    assert before is not None and during is not None
    assert 60 << 20 <= during - before < 128 << 20
    assert spent >= 0.18  # clock ticks


@needs_memory
def test_the_peak_of_a_pass_is_seen_although_it_is_over_at_its_end() -> None:
    # A process of its own: what earlier tests left may be freed meanwhile, and is less than before then.
    program = """
import time
from timedrun.analysis.loader_benchmark import measured_pass

def run():
    held = bytearray(b"x") * (64 << 20)
    time.sleep(1.0)  # ten samples
    return len(held)

print(measured_pass(run).peak_bytes)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) >= 60 << 20
