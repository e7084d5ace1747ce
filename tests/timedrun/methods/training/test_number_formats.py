"""The probe of the CPU agrees with its instructions, and configs follow it."""

import platform
from pathlib import Path

import pytest
import torch

from timedrun.methods.training import number_formats
from timedrun.methods.training.number_formats import emulated, slowdown


@pytest.mark.skipif(platform.machine() != "x86_64" or platform.system() != "Linux", reason="reads x86's flags")
def test_bf16_is_emulated_exactly_where_torch_has_no_instructions_to_compute_it_with():
    flags = set(Path("/proc/cpuinfo").read_text().split())
    allowed = torch.backends.cpu.get_cpu_capability()  # ATEN_CPU_CAPABILITY may forbid some
    if allowed.startswith("AVX512") and flags & {"avx512_bf16", "amx_bf16"}:
        assert not emulated("bf16", "cpu")
    elif "avx512f" not in flags and "avx_ne_convert" not in flags:
        assert emulated("bf16", "cpu") and slowdown("bf16") > 4


@pytest.mark.parametrize(
    ("device", "cuda", "slow"), [("cpu", True, True), ("auto", True, False), ("cuda", True, False)]
)
def test_only_runs_on_cpus_are_emulated(monkeypatch, device, cuda, slow):
    monkeypatch.setattr(number_formats, "slowdown", lambda precision: 40.0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    assert emulated("bf16", device) is slow
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert emulated("bf16") and not emulated("fp32")


@pytest.mark.parametrize(("times", "printed"), [(0.6, "bf16"), (40.0, "fp32")])
def test_the_demo_is_told_a_precision_that_this_machine_computes_in(monkeypatch, capsys, times, printed):
    monkeypatch.setattr(number_formats, "slowdown", lambda precision: times)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["number_formats", "bf16"])
    number_formats.main()
    found = capsys.readouterr()
    assert found.out == f"{printed}\n" and ("in fp32" in found.err) == (printed == "fp32")
