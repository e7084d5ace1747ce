"""A race's table and page, and that a failing step of the report takes nothing else with it."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from unittest.mock import patch

import pytest

from judging.ground.errors import TimedrunError
from judging.ground.result_files import write_json
from judging.pages import plot
from tests.judging.conftest import log_loads
from timedrun.cli import main
from timedrun.evidence.race_package import package_race
from timedrun.racing import race_file
from timedrun.racing.command_side import CommandSide
from timedrun.racing.race_file import COMMANDS, Comparison, Race, Tuned, side_file
from timedrun.racing.report import Report

WriteRun = Callable[..., Path]


def made(race: Race, folder: Path) -> tuple[Report, str]:
    report = Report(race, folder)
    with patch.object(report, "check", return_value=[]):
        report.make(package_race, "few runs", "no matplotlib")
    return report, "\n".join([*report.answers, *report.table(None), *report.details(folder)])


def test_the_table_leads_with_the_paired_ratio_and_its_verdict(race, tmp_path):
    race.emulated = {"a": "bf16 emulated, 30.0 times fp32's time"}
    report, text = made(race, tmp_path)
    row = next(line for line in text.splitlines() if line.startswith("config a"))
    assert row.split("  ")[1].strip() == "2.03x [1.90, 2.17]" and "faster" in row and row.endswith("2.00x")
    assert "config b is" in text and not report.failed
    assert "portable    config b takes 0.492 [0.461, 0.526] of the time of config a on the same machine" in text
    assert "package     skipped: few runs" in text and "figure      skipped: no matplotlib" in text
    assert "emulated    config a: bf16 emulated, 30.0 times fp32's time; its ratios hold on such CPUs only" in text
    written = json.loads((tmp_path / "race.json").read_text())
    assert written["runs_seconds"] == {"config a": [40.0, 44.0, 41.0], "config b": [20.0, 21.0, 20.5]}
    assert written["ratios"]["config a / config b"]["verdict"] == "faster"
    assert "range" not in report.table(80)[1]  # fits a small terminal
    race.keep_if = "time < 0.9x"
    assert report.decision == "keep"
    race.turns[-1].status = "planned"
    assert report.decision == "inconclusive"


def test_the_energy_of_each_side_is_stated_or_why_it_is_not_known(race, tmp_path):
    for side, joules in (("a", 120.0), ("b", 40.0)):
        for log in (tmp_path / side).glob("result_*.txt"):
            log_loads(log, {"cpu_joules": joules})
    _, text = made(race, tmp_path)
    assert "energy      config a: 120 J of processors (median)" in text and "config b: 40 J of" in text
    written = json.loads((tmp_path / "race.json").read_text())["energy"]
    assert written == {"of": "processors", "joules": {"config a": [120] * 3, "config b": [40] * 3}}
    log_loads(tmp_path / "a" / "result_0.txt", {}, lacks={"cpu_joules": "OSError: none"})
    assert "energy      not measured: cpu_joules: OSError: none" in made(race, tmp_path)[1]


def test_too_few_pairs_have_no_interval_and_a_failed_run_no_partner(race, tmp_path):
    race.turns[1].status, race.turns[1].why = "failed", "exit code 1"
    report, text = made(race, tmp_path)
    assert "too few pairs (2 < 3) where both reach; misses more" in text and "1.98x [" not in text
    assert "expected    config b: 20.8 s [" in text and "], 2 of 3 reached, misses included" in text
    assert "2 of 3, 1 failed" in text and "failed      config b, run 0: exit code 1" in text
    assert "40.0 s - 44.0 s       1.98x" in text  # 41.0 / 20.75, the medians in the table, and not those of the pairs
    assert report.failed


def test_failing_steps_are_lines_of_the_report(race, tmp_path, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise TimedrunError("the disk is full")

    monkeypatch.setattr(plot, "plot_quality", fail)
    report = Report(race, tmp_path)
    monkeypatch.setattr(report, "check", lambda paths: 1 / 0)
    report.make(package_race, "", "")  # the package fails on toy logs
    text = "\n".join(report.details(tmp_path))
    for what in ("check failed: ", "package failed: ", "figure failed: the disk is full"):
        assert f"problem     {what}" in text
    assert "ZeroDivisionError" in text and report.failed and len(report.table(None)) == 5
    assert len(json.loads((tmp_path / "race.json").read_text())["problems"]) == 3


def test_the_intervals_of_an_ablation_hold_all_at_once(race, tmp_path):
    _, alone = made(race, tmp_path)
    race.ablation = True
    race.comparisons = [replace(race.comparisons[0], row=f"m{number}, left out") for number in range(5)]
    report, text = made(race, tmp_path)
    assert report.race.confidence == pytest.approx(0.99) and "The 5 intervals hold all at once" in text
    assert "2.03x [1.90, 2.17]" in alone and "2.0x [1.7, 2.4]" in text  # t = 4.303 and 9.925


@pytest.mark.parametrize(("until_decided", "header"), [(False, "97.5 %"), (True, "98.69 %")])
def test_the_intervals_of_three_sides_hold_at_once_and_state_their_confidence(
    tmp_path, plan, write_run, until_decided, header
):
    race = plan(("a", "b", "c"), runs=6)
    race.until_decided = until_decided
    for place, turn in enumerate(race.turns):
        write_run(tmp_path / turn.side, turn.number, 40.0 + turn.number, start=1000.0 * (place + 1))
        turn.status = "finished"
    report, text = made(race, tmp_path)
    assert f"speed-up [{header}]" in text and "The 2 intervals hold all at once with 95 % (Bonferroni)" in text
    ratios = json.loads((tmp_path / "race.json").read_text())["ratios"]
    assert {round(100 * ratio["confidence"], 2) for ratio in ratios.values()} == {float(header[:-2])}


@pytest.mark.parametrize("failed", [False, True])
def test_a_side_that_misses_more_is_never_just_faster(tmp_path, plan, write_run, failed):
    race = plan(runs=8)
    race.until_decided, race.keep_if = True, "time < 0.9x"
    for place, turn in enumerate(race.turns):
        missed = turn.side == "b" and turn.number < 5
        write_run(tmp_path / turn.side, turn.number, 40.0 if turn.side == "a" else 20.0 + place / 10,
                  start=1000.0 * (place + 1), quality=0.4 if missed else 0.6)  # fmt: skip
        turn.status, turn.seconds = "failed" if missed and failed else "finished", 40.0
    report, text = made(race, tmp_path)
    assert not report.decided and report.keep_if.decide(*report.last) == "inconclusive"
    assert "where both reach the target (3 of 8 pairs), config b missed 5 of 8: faster where both reach; mi" in text
    assert report.verdicts[0].startswith("Where both reach the target (3 of 8 pairs), config b is ")
    assert "faster where both reach; misses more; by expected time to a success 0." in report.verdicts[0]
    assert "expected    config a: 40.0 s [40.0, " in text and ", 3 of 8 reached, misses included" in text
    if not failed:
        row = "missed      config b, run 0: ended at 0.4, but its target is 0.5"
        assert row in text and "missed      1 more runs, named in race.json" in text
        assert len(json.loads((tmp_path / "race.json").read_text())["missed"]) == 5
    for turn in race.of_side("b", "finished"):
        (tmp_path / "b" / f"result_{turn.number}.txt").unlink()
        write_run(tmp_path / "b", turn.number, 20.0, start=500.0 + 1000 * turn.number, quality=0.4)
    _, text = made(race, tmp_path)
    assert "expected    config b: unbounded, 0 of 8 reached" in text
    assert "to a success is unbounded; there is no time to compare" in text


@pytest.mark.parametrize(
    ("benchmark", "source", "words"),
    [
        (COMMANDS, "", "SEED is not read; the interval is the machine's alone"),
        (COMMANDS, "SEED", "SEED changes none of them"),
        ("toy", "", "the seed changes none of them"),
    ],
)
def test_what_times_do_not_show_is_told(tmp_path, plan, write_run, benchmark, source, words):
    race = plan(runs=5)
    race.benchmark = benchmark
    times = {"a": [0.42, 0.012, 0.013, 0.012, 0.011], "b": [0.42, 0.010, 0.011, 0.010, 0.010]}
    for side in times:
        command = CommandSide(name=side, command="train", quality="acc {}", target=0.5)
        (tmp_path / "sides").mkdir(exist_ok=True)
        write_json(side_file(tmp_path, side), asdict(command))
        (tmp_path / side / "run_0" / "source").mkdir(parents=True)
        (tmp_path / side / "run_0" / "source" / "train.py").write_text(source)
    for place, turn in enumerate(race.turns):
        write_run(tmp_path / turn.side, turn.number, times[turn.side][turn.number], start=10.0 * place + 1, quality=0.6)
        turn.status = "finished"
    report, text = made(race, tmp_path)
    assert f"seeds       config a: every run has the same qualities: {words}\n" in text
    assert "first run   config a: 0.42 s, 35 times the others (0.011 to 0.013 s)" in text
    assert ("short       config b: a run of 10 ms" in text) is (benchmark == COMMANDS)
    (ratio,) = report.ratios.values()
    assert ratio.verdict == ("no difference shown" if benchmark == COMMANDS else "faster")
    assert "pairs would show" not in text  # no number of pairs shows what the clock does not resolve


def test_an_ablation_says_beside_what_was_measured_what_amdahls_law_predicted(race, tmp_path):
    def profile(config: str, backward: float) -> dict[str, object]:
        at = {"progress": 0.5, "seconds_per_step": 1 + backward, "parts": {"forward": 1.0, "backward": backward}}
        return {"config": config, "positions": [at], "evaluation_seconds": 0.0, "schedule": {"steps": 10}}

    halves = [profile("a", 2.0), profile("one", 1.0), profile("two", 1.0)]
    (tmp_path / "profiles.json").write_text(json.dumps({"profiles": halves}))
    (tmp_path / "sides").mkdir()
    for side, methods in (("a", []), ("b", [{"name": "one"}, {"name": "two"}])):
        (tmp_path / "sides" / f"{side}.json").write_text(json.dumps({"name": side, "batch": 8, "methods": methods}))
    race.ablation = True
    rows = (("all methods, left out", "a", "b"), ("one, left out", "two", "b"), ("one, alone", "a", "one"))
    race.comparisons = [Comparison(row=row, slow=slow, fast=fast) for row, slow, fast in rows]
    race.comparisons += [Comparison(row="two, alone", slow="a", fast="two")]
    race.sides |= {"one": "one", "two": "two"}
    report, text = made(race, tmp_path)
    predicted = [*report.predicted.values()]
    assert predicted == pytest.approx([3 / 2, 3 / 2, 3 / 1.5, 2 / 1.5])  # alone, alone, all, the second after the first
    header, row = (line for line in text.splitlines() if "per sample, predicted" in line or line.startswith("all met"))
    assert row.endswith(", 2.00x") and "predicted   all methods: 2.00x per sample (Amdahl's law), m" in text
    saved = json.loads((tmp_path / "race.json").read_text())["ratios"]["config a / config b"]
    assert saved["predicted_per_sample"] == pytest.approx(2)
    (tmp_path / "sides" / "b.json").write_text(json.dumps({"name": "b", "batch": 16, "methods": [{}, {}]}))
    assert len(Report(race, tmp_path).predicted) == 2, "another batch is not a method"


def test_a_race_stopped_within_a_round_says_so_and_names_disturbed_runs(race, tmp_path):
    race.turns[-1].session = 1
    report, _ = made(race, tmp_path)
    report.sets["b"][1] = replace(report.sets["b"][1], disturbances=("other processes used 61%", "x 7%"))
    report.compare()
    text = "\n".join(report.details(tmp_path))
    assert "the race was stopped within round 2" in text
    assert "disturbed   b/result_1.txt: other processes used 61%; x 7%" in text
    assert "undisturbed config a / config b: " in text and "too few pairs (2 < 3)" in text


HOSTILE = "<script>alert(1)</script>"


def elements(page: str) -> list[tuple[str, dict[str, str | None]]]:
    """Return the names and attributes of a page's elements."""
    seen: list[tuple[str, dict[str, str | None]]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: seen.append((tag, dict(attributes)))  # type: ignore[method-assign]
    parser.feed(page)
    return seen


@pytest.fixture
def page(tmp_path: Path, race: Race) -> str:
    """The page of a race of two sides, one of them with a hostile label."""
    race.sides["b"] = HOSTILE
    for turn in race.turns:
        config = tmp_path / turn.side / f"run_{turn.number}" / "config.json"
        config.parent.mkdir()
        config.write_text(json.dumps({"name": turn.side, "optimizer": {"peak_lr": 0.1 if turn.side == "a" else 0.2}}))
    race.save(tmp_path)
    assert main(["report", str(tmp_path), "--json"]) == 1  # the checks fail, since these logs lack most events
    return (tmp_path / "report.html").read_text()


def test_the_page_has_table_figures_settings_and_every_log_and_runs_nothing_out_of_one(page):
    assert "faster" in page and "Result not verified by MLCommons Association." in page
    assert '<td>optimizer.peak_lr</td><td class="number">0.1</td><td class="number">0.2</td>' in page
    for number in range(3):
        assert f"<td>a/result_{number}.txt</td>" in page and f"<td>b/result_{number}.txt</td>" in page
    images = [attributes for tag, attributes in elements(page) if tag == "img"]
    assert [image["alt"] for image in images] == ["Quality over time"]
    bars = [attributes["style"] for tag, attributes in elements(page) if tag == "b"]
    assert len(bars) == (3 + 1) + (3 + 1)  # of each pair and of all; of each factor and of their product
    assert not {"script", "link", "iframe"} & {tag for tag, _ in elements(page)}
    sources = [attributes.get("src") or attributes.get("href") or "" for _, attributes in elements(page)]
    assert all(source.startswith("data:") for source in sources if source)
    assert "&lt;script&gt;" in page


def test_a_summary_in_markdown_shows_a_label_as_it_is_and_is_refused_beside_a_figure(page, tmp_path, capsys, refused):
    assert main(["report", str(tmp_path), "--markdown"]) == 1
    assert "\\<script>" in (said := capsys.readouterr().out) and said.count("<") == said.count("\\<")
    assert "nothing was written" in refused("report", tmp_path, "--markdown", "--figure", tmp_path / "figure.png")


def test_a_paragraph_and_a_table_in_latex_have_runs_interval_and_tuning_by_labels_that_name_one_set_each(
    page, tmp_path, capsys, refused
):
    labels = ("--label", "a=x_1 & y", "--label", f"{HOSTILE}=50% less")
    assert main(["report", str(tmp_path), "--paper", *labels]) == 1
    said = capsys.readouterr().out
    assert "config a" not in said and "script" not in said
    for words in ("50\\% less is", "3 interleaved pairs", "Tuning: not recorded of any side"):
        assert words in said
    assert "Environment: " in said and "\n  x\\_1 \\& y & " in said and said.count("\\end{tabular}") == 1
    assert "no set of that name, but config a, " in refused("report", tmp_path, "--label", "c=fast")
    assert "two sets would be called" in refused("report", tmp_path, "--label", f"a={HOSTILE}")
    assert "is not NAME=TEXT" in refused("report", tmp_path, "--label", "a=")
    (tmp_path / "empty").mkdir()
    assert "nothing was written" in refused("report", tmp_path / "empty")


def test_the_tuning_of_each_side_is_stated_and_what_makes_it_unequal(race, tmp_path):
    assert "tuning      not recorded of any side" in made(race, tmp_path)[1]
    fields = {"trials": 40, "settings": 30, "space": {"lr": "0.1..1"}, "target": 0.9, "seed": 1, "ledger": "", "of": ""}
    first, second = (Tuned(minutes=minutes, split="toy_tuning", **fields) for minutes in (40.0, 39.5))  # type: ignore[arg-type]
    race.tuned = {"a": first, "b": second}
    _, text = made(race, tmp_path)
    assert "config a tuned 40 min (40 runs on toy_tuning); config b tuned 39.5 min (40 runs" in text
    assert "unequal" not in text and "decides this race" not in text
    race.tuned["a"] = replace(first, minutes=4.0, split="toy")
    _, text = made(race, tmp_path)
    assert "tuning      unequal: config a for 0.1 of the time of config b" in text
    assert "tuning      config a was tuned on toy, the data that decides this race" in text
    assert json.loads((tmp_path / "race.json").read_text())["tuning"] == Report(race, tmp_path).tuning_words
    assert race_file.load(tmp_path).tuned == race.tuned
