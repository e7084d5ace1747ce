"""The published MosaicML results: every score comes out of the logs again, and no strict check calls them broken."""

from __future__ import annotations

import tarfile

import pytest

from mlevents.checks.log_check import check_record, check_set
from mlevents.record import read, result_files
from mlevents.summary import summarize

# archive, ruleset, folder, published minutes (olympic mean), minutes of result_0 on.
SETS = {
    "resnet baseline": ("2.0", "2.0.0", "baseline/resnet", 110.513, (111.654, 110.460, 110.538, 110.521, 110.480)),
    "resnet methods": ("2.0", "2.0.0", "methods/resnet", 23.789, (23.554, 24.100, 23.546, 24.540, 23.712)),
    "bert baseline": (
        "2.1",
        "2.1.0",
        "baseline/bert",
        21.371,
        (22.763, 21.082, 21.045, 21.044, 21.057, 23.583, 21.877, 21.899, 20.202, 20.198),
    ),
    "bert methods": (
        "2.1",
        "2.1.0",
        "methods/bert",
        7.896,
        (8.017, 7.511, 7.546, 8.128, 8.415, 8.181, 7.831, 8.124, 7.831, 7.239),
    ),
}


@pytest.mark.parametrize(("round_", "ruleset", "folder", "score", "minutes"), SETS.values(), ids=SETS)
def test_a_published_score_comes_out_of_its_logs(published, tmp_path, round_, ruleset, folder, score, minutes):
    with tarfile.open(published / f"mosaicml-v{round_}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    records = [read(path) for path in result_files(tmp_path / f"MosaicML/results/8xA100_80GB-{folder}")]
    assert [round(record.minutes, 3) for record in records] == list(minutes)
    ordered = sorted(record.minutes for record in records)
    assert sum(ordered[1:-1]) / (len(ordered) - 2) == pytest.approx(score, abs=0.0005)
    findings = [finding for record in records for finding in check_record(record, ruleset)]
    assert [str(finding) for finding in findings if finding.level == "error"] == []
    # MosaicML numbers resnet's epochs from 0 and stops blocks only at evaluations; neither changes a time.
    numbered = {"epoch-numbering"} if "resnet" in folder else set()
    assert {finding.rule for finding in findings if finding.level == "warning"} == {"pairs"} | numbered
    # Only the resnet baseline is evaluated as often as the closed division asks.
    interval = set() if folder == "baseline/resnet" else {"evaluation-interval"}
    assert {finding.rule for finding in findings if finding.level == "note"} == interval
    assert check_set([summarize(record) for record in records], ruleset) == []
    assert not any(record.is_demonstration for record in records)
