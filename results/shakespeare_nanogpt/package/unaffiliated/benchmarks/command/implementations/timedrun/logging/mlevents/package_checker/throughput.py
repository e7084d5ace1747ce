"""Check the throughput of runs against the peak of the described accelerators."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from mlevents import keys
from mlevents.event import Finding
from mlevents.package_checker.files import shown
from mlevents.package_checker.system_description import SystemDescription, count_of
from mlevents.rounds import BenchmarkRules
from mlevents.summary import RunSummary

# Dense peak in TFLOP/s (TOP/s) of one accelerator at the lowest precision that it has and training uses, by a word of
# accelerator_model_name; of several variants (SXM, PCIe, NVL) the fastest. From the vendors' data sheets and
# documentation: NVIDIA's give sparse peaks, which are twice the dense ones but for Blackwell Ultra.
PEAK_TFLOPS: Final = {
    "v100": 125,  # FP16
    "a100": 312,  # FP16, BF16
    "l40s": 733,  # FP8
    "h100": 1979,  # FP8, also the next two
    "h200": 1979,
    "gh200": 1979,
    "b200": 9000,  # FP4, as all of Blackwell: HGX B200, GB200 NVL72, HGX B300, GB300 NVL72
    "gb200": 10_000,
    "b300": 14_000,
    "gb300": 15_000,
    "mi300x": 2615,  # FP8, also the next one
    "mi325x": 2615,
    "mi350x": 9200,  # FP4 and FP6, also the next one
    "mi355x": 10_100,
    "gaudi2": 865,  # FP8
    "gaudi3": 1835,  # FP8
    "v5e": 393,  # INT8, as all TPUs: docs.cloud.google.com/tpu/docs
    "v5p": 918,
    "trillium": 1836,
    "v6e": 1836,
}
# The highest share of the peak in the published rounds from v2.0 to v5.1 is 0.45 (docs/published_rounds.md).
SUSPICIOUS: Final = 0.75


def check_throughput(
    logs: Sequence[RunSummary], description: SystemDescription, rules: BenchmarkRules
) -> Iterator[Finding]:
    """Yield findings about runs that trained faster than the accelerators of `description` could.

    The operations of the reference's model are a lower bound of a closed run; an open run may have a smaller model, so
    the finding on it is a warning. Accelerators of unknown peak and benchmarks of unknown operations are skipped.
    """
    model = description.text("accelerator_model_name") or ""
    peaks = [PEAK_TFLOPS[word] for word in re.findall(r"[a-z0-9]+", model.lower()) if word in PEAK_TFLOPS]
    counts = [count_of(description.values.get(key)) for key in ("number_of_nodes", "accelerators_per_node")]
    accelerators = (counts[0] or 0) * (counts[1] or 0)
    if not peaks or accelerators < 1 or rules.training_flop is None:
        return
    for run in logs:
        if run.is_demonstration or not run.minutes or run.minutes < 0:
            continue
        trained = max((point.progress for point in run.quality if point.minutes <= run.minutes), default=0.0)
        rate = trained * rules.training_flop / (60e12 * run.minutes)
        share = rate / (max(peaks) * accelerators)
        if share > SUSPICIOUS:
            message = (
                f"{trained:,.0f} {rules.unit} in {run.minutes:.3f} minutes require at least {rate:,.0f} TFLOP/s of the "
                f"reference's model, {share:.2f} of the peak of {accelerators} {model} in its system description"
            )
            closed = run.division == keys.CLOSED
            more = "" if closed else "; an open run may have a smaller model"
            yield Finding(
                level="error" if closed and share > 1 else "warning",
                rule="throughput",
                message=message + more,
                path=shown(run.path),
            )
