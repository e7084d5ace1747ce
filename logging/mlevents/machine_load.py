"""Other machine load during a run: its logged counters as shares, and which of them disturb a measured time."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mlevents import keys
from mlevents.event import is_number
from mlevents.record import RunRecord

DISTURBING: Final = 0.05
"""Share above which a load disturbs a run: the spread that MLCommons states for results other than imaging (results
page of MLPerf Training v2.1, "Metric"). Each share bounds the part of its time that a run may have lost by it."""
SHORTEST: Final = 0.5  # seconds below which there is no share: the kernel counts in hundredths
IMPLAUSIBLE_JOULES: Final = 1e18  # of a power station in 30 years; sums of fewer are finite
LOADS: Final = {
    "other processes used {:.0%} of the machine's CPU time": ("others_seconds", "capacity_seconds"),
    "own threads waited for others in {:.0%} of the time they could run": ("waited_for_others", "runnable_seconds"),
    "the hypervisor took {:.0%} of the machine's CPU time": ("stolen_seconds", "capacity_seconds"),
    "the control group was throttled in {:.0%} of the periods of its CPU limit": ("throttled_periods", "periods"),
    "tasks stalled for lack of memory in {:.0%} of the time": ("memory_stalled_seconds", "seconds"),
    "heat slowed a GPU in {:.0%} of the time": ("gpu_slowed_seconds", "seconds"),
    "other processes used a GPU of the run at the end of {:.0%} of the blocks": ("gpu_shared_blocks", "blocks"),
}


def shares(blocks: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the load over `blocks`, values of the event `machine_load`, as shares by the text that reports them.

    A counter that a block lacks is unknown, and so are its shares."""
    total: dict[str, float] = {}
    for name in set[str]().union(*blocks):
        values = [value for block in blocks if is_number(value := block.get(name))]
        if len(values) == len(blocks):
            total[name] = sum(map(float, values))
    total["blocks"] = len(blocks)
    if {"busy_seconds", "own_seconds"} <= total.keys():
        total["others_seconds"] = total["busy_seconds"] - total["own_seconds"]
    if {"waited_seconds", "own_seconds"} <= total.keys():
        waited = total["waited_seconds"]
        total["runnable_seconds"] = waited + total["own_seconds"]
        # Others make threads wait only while they run; more threads than cores wait for each other.
        total["waited_for_others"] = min(waited, total.get("others_seconds", waited))
    least = {whole: SHORTEST if whole.endswith("seconds") else 0 for _, whole in LOADS.values()}
    known = {text: of for text, of in LOADS.items() if of[0] in total and total.get(of[1], 0) > least[of[1]]}
    return {text: max(0.0, total[part] / total[whole]) for text, (part, whole) in known.items()}


def joules(record: RunRecord) -> tuple[dict[str, float], str]:
    """Return the joules of a run from its clock's start to its last evaluation by what used them, "gpu" or "cpu" (all
    processors of the machine), and why others are not known; "" if the log does not say."""
    events = [event for event in record.all(keys.MACHINE_LOAD) if isinstance(event.value, dict)]
    if any("nodes" in event.metadata for event in events):
        return {}, "the log has the load of one of its machines"
    if events and record.first(keys.RESUMED) is not None:
        return {}, "the run was interrupted, and what it used meanwhile is not in the log"
    known, why = {}, []
    for name in ("gpu", "cpu"):
        key = f"{name}_joules"
        values = [float(value) for event in events if is_number(value := event.value.get(key)) and value >= 0]
        if len(values) == len(events) and 0 < sum(values) < IMPLAUSIBLE_JOULES:
            known[name] = sum(values)
            continue
        reasons = [event.metadata.get("unknown") for event in events]
        why += [f"{key}: {reason[key]}" for reason in reasons if isinstance(reason, dict) and key in reason][:1]
    return known, "; ".join(why)


def disturbances(record: RunRecord) -> tuple[str, ...]:
    """Return texts of what disturbed a run, in numbers: loads, and a late look at the line that starts or stops its
    clock; empty if nothing did or its log has none."""
    blocks = [event.value for event in record.all(keys.MACHINE_LOAD) if isinstance(event.value, dict)]
    texts = [text.format(share) for text, share in shares(blocks).items() if share > DISTURBING]
    late = record.value(keys.READ_LATE)
    if is_number(late) and record.minutes is not None and late > DISTURBING * 60 * record.minutes:
        texts.append(f"the clock's start or stop was read {1000 * late:.0f} ms late")
    return tuple(texts)
