"""The explorer's numbers are those of the logs' lines that it names, and of `timedrun score`."""

import gzip
import json
import os
import shutil
import tarfile
from pathlib import Path

import pytest

from judging.ground import log_archives
from judging.ground.errors import UsageError
from judging.pages.explorer.explored_sets import explored_sets
from mlevents.event import MARK
from timedrun import cli
from timedrun.commands.options import system_price


def test_every_number_of_a_run_is_on_the_lines_that_its_card_names(results):
    for result_set in explored_sets([results]):
        for run in result_set["runs"]:
            lines = (results.parent / result_set["folder"] / run["file"]).read_text().splitlines()
            events = {key: json.loads(lines[line - 1].partition(MARK)[2]) for key, line in run["lines"].items()}
            assert all(event["key"] == key for key, event in events.items())
            ms = events["run_stop"]["time_ms"] - events["run_start"]["time_ms"]
            assert run["minutes"] == ms / 60_000
            assert run["quality"] == events["eval_accuracy"]["value"]
            epochs = events["eval_accuracy"]["metadata"]["epoch_num"]
            assert run["samples"] == epochs * events["train_samples"]["value"]


def test_a_set_has_the_score_that_the_command_of_its_card_prints(results, monkeypatch, capsys):
    monkeypatch.chdir(results.parent)
    for result_set in explored_sets([results]):
        cli.main(["score", "--json", result_set["folder"]])
        (printed,) = json.loads(capsys.readouterr().out)
        scored = printed["score_minutes"] is not None
        of = "Expected" if result_set["reached"] < len(result_set["runs"]) else "Mean"
        assert result_set["what"] == ("Score" if scored else f"{of} time, no score")
        assert result_set["minutes"] == pytest.approx(printed["score_minutes"] if scored else printed["mean"])
        if printed["quality"] is not None:
            assert result_set["quality"] == pytest.approx(printed["quality"])
        assert (result_set["speedrun"], result_set["steps"]) == (printed["speedrun_minutes"], printed["steps"])
        assert [run["steps"] for run in result_set["runs"]] == printed["steps_runs"]
        assert [run["speedrun"] for run in result_set["runs"]] == printed["speedrun_runs"]
        parts = printed["parts"] or {"samples": None}
        assert result_set["samples"] == parts["samples"]
        if result_set["samples"] is not None:
            assert result_set["samples"] / result_set["training"] / 60 == pytest.approx(parts["samples_per_second"])


def test_sets_read_by_several_processes_are_those_read_by_one(results, monkeypatch):
    shutil.copytree(results / "fast", results / "copy")
    sets = explored_sets([results])
    monkeypatch.setattr("judging.pages.explorer.explored_sets.FILES_A_PROCESS", 1)
    monkeypatch.setattr("judging.pages.explorer.explored_sets.usable_cores", lambda: 2)
    assert explored_sets([results]) == sets
    runs = [run for item in sets if item["config"] == "digits_methods" for run in item["runs"]]
    assert [run["id"][12:] for run in runs] == ["", "", "", "-2", "-2", "-2"]


def test_a_package_has_its_round_hardware_and_the_first_price_that_matches_and_a_missed_set_its_reason(results):
    given = ("*H100*=1", "*A100*=3.5/accelerator", "*CPU*=2/accelerator", "99")
    sets = explored_sets([results], [*map(system_price, given)])
    box, baseline = (next(item for item in sets if item["system"] == name) for name in ("box", "1xCPU-baseline"))
    assert (box["round"], box["submitter"], box["accelerators"]) == ("v2.0", "Example Inc", 16)
    assert box["hardware"] == "NVIDIA A100-SXM4-80GB"
    assert box["price"] == 16 * 3.5 and box["priced"] == "$56.00 per hour"
    assert baseline["price"] == 99 and baseline["round"] == ""
    missed = next(item for item in sets if item["config"] == "=1+1")
    assert missed["minutes"] is None and missed["reached"] == 0 and missed["reason"]
    assert missed["runs"][0]["failure"] == "ended at 0.3, but its target is 0.75"


@pytest.mark.parametrize("text", ["", "x=", "-1", "inf", "much"])
def test_a_price_of_another_form_is_refused(text, results, refused):
    assert "--price" in refused("explore", results, "--out", "x.html", f"--price={text}")


def test_a_path_without_results_is_named(tmp_path):
    for path, why in ((tmp_path, "no result_"), (tmp_path / "none", "does not exist")):
        with pytest.raises(UsageError, match=why):
            explored_sets([path])


def test_a_link_to_a_card_outlives_a_move_of_the_logs_and_copies_have_their_own(results):
    before = {result_set["id"]: result_set["config"] for result_set in explored_sets([results])}
    moved = results.rename(results.parent / "elsewhere")
    assert {result_set["id"]: result_set["config"] for result_set in explored_sets([moved])} == before
    copy = moved / "copy"
    copy.mkdir()
    (copy / "result_0.txt").write_bytes((moved / "fast" / "result_0.txt").read_bytes())
    ids = [card["id"] for result_set in explored_sets([moved]) for card in (result_set, *result_set["runs"])]
    assert len(ids) == len({*ids})


def test_an_archive_of_logs_is_read_as_if_it_were_unpacked_where_it_is(results):
    plain = explored_sets([results])
    with tarfile.open(results / "logs.tar.xz", "w:xz") as archive:
        archive.add(results, ".", recursive=False)
        archive.add(results / "fast", "./fast")
    assert explored_sets([results]) == plain  # it is unpacked already
    shutil.rmtree(results / "fast")
    sets = explored_sets([results])
    (packed,) = [item for item in sets if item["archive"]]
    assert packed["archive"] == "results/logs.tar.xz" and packed["folder"] == "results/fast"
    assert {item["id"] for item in sets} == {item["id"] for item in plain}
    with tarfile.open(results / "logs.tar.gz", "w:gz") as archive:
        archive.add(results / "baseline", "../elsewhere")
    with pytest.raises(UsageError, match="logs.tar.gz: '../elsewhere.*' is sparse or has an unsafe name"):
        explored_sets([results])


def hostile(name, size=0, kind=tarfile.REGTYPE, content=b"", **pax):
    """An archive of one header, with `content` after it."""
    member = tarfile.TarInfo(name)
    member.size, member.type, member.pax_headers = size, kind, pax
    header = member.tobuf(tarfile.PAX_FORMAT if pax else tarfile.GNU_FORMAT)
    return header + content.ljust(-len(content) // 512 * -512, b"\0") + bytes(10240)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (hostile("set/result_0.txt", path="set/a\0b.txt"), "unsafe name"),
        (hostile("set/result_0.txt", **{"GNU.sparse.map": "0,1", "GNU.sparse.size": str(2**28)}), "sparse"),
        (hostile("set/result_0.txt", 2**30), "more than 536,870,912 bytes"),
        (hostile("a", 2**40, tarfile.GNUTYPE_LONGNAME), "cannot be unpacked"),
        (hostile("set/result_0.txt")[:512] * 10_001, "10,000 members"),
        (b"\xff" * 4096, "is not a tar file"),
    ],
)
def test_a_hostile_archive_is_refused_in_words(tmp_path, data, reason):
    (tmp_path / "logs.tar.gz").write_bytes(gzip.compress(data, 1) if reason != "is not a tar file" else data)
    with pytest.raises(UsageError, match=reason):
        explored_sets([tmp_path])


def test_limits_hold_for_all_archives_together(results, monkeypatch):
    shutil.move(results / "fast", results.parent / "fast")
    for name in ("one", "two"):
        (results / name).mkdir()
        path = results / name / "logs.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            archive.add(results.parent / "fast" / "result_0.txt", "fast/result_0.txt")
        monkeypatch.setattr(log_archives._Content, "bytes_left", 511 + len(gzip.decompress(path.read_bytes())))
        if name == "one":
            explored_sets([results])
    with pytest.raises(UsageError, match="two/logs.tar.gz: with it archives hold more"):
        explored_sets([results])


@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to(path), Path.mkdir]
)
def test_what_is_no_regular_file_is_not_opened_as_an_archive(tmp_path, make):
    make(tmp_path / "logs.tar.gz")
    with pytest.raises(UsageError, match="is not a tar file"):
        explored_sets([tmp_path])
