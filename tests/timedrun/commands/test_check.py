"""`timedrun check`: what its results say beyond the verdicts on each log."""

from judging.checking.verdicts import check_paths
from tests.mlevents.conftest import good_records, lines_of


def test_a_round_without_rules_is_said_once_a_submission(tmp_path):
    (tmp_path / "training_results_v0.7/Org/systems").mkdir(parents=True)
    for number in range(3):
        path = tmp_path / f"training_results_v0.7/Org/results/System/resnet/result_{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines_of(good_records(seed=number))))
    for given, kind in ((tmp_path, "package"), (path, "log")):
        results = check_paths([given], None, run_official=False)
        assert [result.kind for result in results for f in result.findings if f.rule == "no-rules"] == [kind]
