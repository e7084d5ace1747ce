"""The published results of MosaicML: their scores come out of the logs, and no strict check finds an error in them."""

import pytest

from mlevents.checks.log_check import check_record
from mlevents.checks.result_set import check_set
from mlevents.record import read, result_files
from mlevents.summary import summarize

# Round, folder, published minutes (olympic mean), minutes of result_0 and the following runs.
SETS = {
    "resnet baseline": ("v2.0", "baseline/resnet", 110.513, (111.654, 110.460, 110.538, 110.521, 110.480)),
    "resnet methods": ("v2.0", "methods/resnet", 23.789, (23.554, 24.100, 23.546, 24.540, 23.712)),
    "bert baseline": (
        *("v2.1", "baseline/bert", 21.371),
        (22.763, 21.082, 21.045, 21.044, 21.057, 23.583, 21.877, 21.899, 20.202, 20.198),
    ),
    "bert methods": (
        *("v2.1", "methods/bert", 7.896),
        (8.017, 7.511, 7.546, 8.128, 8.415, 8.181, 7.831, 8.124, 7.831, 7.239),
    ),
}


def findings_of(records, ruleset, level):
    return [f.rule for record in records for f in check_record(record, ruleset) if f.level == level]


@pytest.mark.parametrize("logs", ["published_sample", "published_rounds"])
@pytest.mark.parametrize(("round_", "folder", "score", "minutes"), SETS.values(), ids=SETS)
def test_published_logs_have_their_published_times_and_score_and_no_error(
    request, logs, round_, folder, score, minutes
):
    rounds, ruleset = request.getfixturevalue(logs), f"{round_[1:]}.0"
    records = [read(path) for path in result_files(rounds[round_] / f"results/8xA100_80GB-{folder}")]
    assert [round(record.minutes, 3) for record in records] == list(minutes[: len(records)])
    assert findings_of(records, ruleset, "error") == []
    # MosaicML numbers resnet's epochs from 0 and stops blocks only at evaluations; neither changes a time.
    numbered = {"epoch-numbering"} if "resnet" in folder else set()
    # They log the start and the stop of their initialization and their cleared cache as other types.
    assert set(findings_of(records, ruleset, "warning")) == {"pairs", "event-type"} | numbered
    # Only the resnet baseline is evaluated as often as the closed division asks.
    interval = set() if folder == "baseline/resnet" else {"evaluation-interval"}
    assert set(findings_of(records, ruleset, "note")) == interval
    assert not any(record.is_demonstration for record in records)
    if len(records) == len(minutes):
        ordered = sorted(record.minutes for record in records)
        assert sum(ordered[1:-1]) / (len(ordered) - 2) == pytest.approx(score, abs=0.0005)
        of_set = check_set([summarize(record) for record in records], ruleset)
        assert {(finding.level, finding.rule) for finding in of_set} == {("note", "convergence")}  # open: any speed
