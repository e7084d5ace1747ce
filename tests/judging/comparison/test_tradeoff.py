"""Curves of quality over time: interpolated, their frontier, and extrapolated to another machine by a profile."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judging.comparison.extrapolation import over_schedule
from judging.comparison.tradeoff import direction, frontier
from judging.ground.errors import UsageError
from mlevents import keys


def test_no_runs_are_no_curve():
    with pytest.raises(UsageError, match="there is no curve"):
        direction([])


@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(0, 1)), min_size=1, max_size=12))
def test_the_frontier_is_what_nothing_beats_in_time_and_quality(points):
    beaten = {point for point in points if any(o != point and o[0] <= point[0] and o[1] >= point[1] for o in points)}
    assert frontier(points) == {*points} - beaten


SLOWER = [{"progress": 0.0, "seconds_per_step": 0.1}, {"progress": 1.0, "seconds_per_step": 0.3}]
ONE_NODE = {"accelerators_per_node": "1", "number_of_nodes": "1"}
SMALL = {keys.DATASET: "digits", keys.TRAIN_SAMPLES: 650, keys.QUALITY_TARGET: 0.75}


def test_the_mean_over_the_schedule_is_the_trapezoids():
    assert over_schedule([0.25, 0.75], [2.0, 4.0]) == 0.25 * 2 + 0.5 * 3 + 0.25 * 4
    assert over_schedule([1.0, 1.0], [2.0, 4.0]) == 3.0
    assert over_schedule([0.25, 0.75], [2.0, 4.0], until=0.5) == pytest.approx((0.25 * 2 + 0.25 * 2.5) / 0.5)


@pytest.fixture
def results(tmp_path, write_set, monkeypatch) -> Path:
    """`base` and `method`, three runs each of three evaluated epochs of ten steps; the current folder."""
    for config, minutes in (("base", 1.0), ("method", 0.5)):
        write_set(tmp_path / config, [minutes] * 3, **SMALL | {keys.CONFIG_NAME: config})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def profile(config: str, /, seconds: float = 0.1, **values: object) -> str:
    one = {"config": config, "positions": [{"progress": 0.5, "seconds_per_step": seconds}], "evaluation_seconds": 2.0}
    Path(f"{config}.json").write_text(json.dumps(one | values))
    return f"{config}.json"


def test_a_run_has_its_own_steps_and_evaluations_at_the_rates_of_the_profile(results, told):
    # The method's steps grow from 0.1 to 0.3 s over 40 steps, of which its runs took 30: 0.1 to 0.25 s.
    profiles = [profile("base"), profile("method", positions=SLOWER, schedule={"steps": 40}, global_batch=64)]
    values = told("compare", "base", "method", "--profile", *profiles, "--price", "36")
    base, method = (curve["gains"][0] for curve in values["curves"])
    assert base["minutes"] * 60 == pytest.approx(30 * 0.1 + 3 * 2) and base["usd"] == pytest.approx(9.0 * 0.01)
    assert method["minutes"] * 60 == pytest.approx(30 * 0.175 + 3 * 2)
    assert base["extrapolated"] and method["extrapolated"] and "not measured" in values["extrapolated"]
    assert values["curves"][1]["extrapolated"] == "another machine (method.json)"


def test_a_run_of_a_sweep_took_the_profile_up_to_the_end_of_its_own_schedule(results, write_run, told):
    write_run(results / "swept", 0, **SMALL | {keys.CONFIG_NAME: "method_x1"})  # 30 steps
    # To its target the config may take 60 steps, in which a step grows from 0.1 to 0.3 s.
    longer = profile("method", positions=SLOWER, schedule={"steps": 60})
    own = profile("method_x1", positions=SLOWER, schedule={"steps": 30})
    for profiles, seconds in ((longer, 0.15), (own, 0.2)):
        (curve,) = told("compare", "swept", "--profile", profiles)["curves"]
        assert curve["gains"][0]["minutes"] * 60 == pytest.approx(30 * seconds + 3 * 2)


def test_extrapolated_times_are_marked_in_table_and_figure_and_measured_ones_are_not(results, printed):
    pytest.importorskip("matplotlib")
    profiles = profile("base", device="cpu", threads=2, system={"host_processor_model_name": "Fast"})
    text = printed("compare", "base", "method", "--profile", profiles, "--out", "there.svg", "--price", "9")
    assert "~9.0 s" in text and "time: extrapolated to cpu, Fast, 2 threads (base.json)" in text
    assert "note: left out, without a profile: method" in text
    assert "extrapolated" not in printed("compare", "base", "method", "--out", "here.svg")
    there, here = (Path(name).read_text() for name in ("there.svg", "here.svg"))
    assert "Open markers" in there and "US dollars" in there
    assert "Open markers" not in here and "US dollars" not in here


def test_each_machine_of_several_has_its_own_times_costs_and_answers(results, told, printed, refused):
    here = {"device": "cuda", "system": {"accelerator_model_name": "NVIDIA L4", **ONE_NODE}}
    there = {"device": "cuda", "system": {"accelerator_model_name": "Tesla T4", **ONE_NODE}}
    files = []
    for folder, machine, seconds in (("l4", here, 0.1), ("t4", there, 0.4)):
        for config, share in (("base", 1.0), ("method", 0.5)):
            file = Path(profile(config, seconds * share, **machine))
            files.append(str(file.rename(f"{folder}_{file}")))
    words = ("compare", "base", "method", "--profile", *files, "--price", "0.5")
    l4, t4 = told(*words)["machines"]
    assert (l4["machine"], t4["machine"]) == ("cuda, NVIDIA L4", "cuda, Tesla T4")
    seconds = [60 * curve["gains"][0]["minutes"] for machine in (l4, t4) for curve in machine["curves"]]
    assert seconds == pytest.approx([30 * 0.1 + 6, 30 * 0.05 + 6, 30 * 0.4 + 6, 30 * 0.2 + 6])
    assert {curve["energy_unknown"] for curve in t4["curves"]} == {"a profile of other hardware has no energy"}
    assert t4["curves"][0]["gains"][0]["usd"] == pytest.approx(18 / 3600 * 0.5)
    assert all(curve["gains"][0]["extrapolated"] for machine in (l4, t4) for curve in machine["curves"])
    said = printed(*words, "--budget", "18s")
    assert "On cuda, NVIDIA L4, extrapolated:" in said and "On cuda, Tesla T4, extrapolated:" in said
    assert "time: extrapolated to cuda, Tesla T4 (t4_base.json) (of base)" in said
    assert [machine["budget"] for machine in told(*words, "--budget", "18s")["machines"]] == ["18 s", "18 s"]
    assert "Draw each" in refused(*words, "--out", "all.svg")
    only = refused(*words[:4], files[0], "--baseline", "method")
    assert "--baseline method: no profile of cuda, NVIDIA L4 extrapolates it" in only
    assert "needs the price of an hour; give it by --price" in refused(*words[:-2], "--budget", "1usd")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"config": "other"}, "is none of base, method"),
        ({"evaluation_seconds": None}, "is not a profile with an evaluation"),
        ({"positions": SLOWER}, "several positions need the steps"),
        ({"positions": []}, "needs positions"),
        (
            {"evaluation_seconds": 0.0, "positions": [{"progress": 0.5, "seconds_per_step": 0.0}]},
            "not negative or all 0",
        ),
        ({"schedule": {"steps": 0}}, "needs positions from 0 to 1, steps"),
        ({"global_batch": 32}, "has a global batch of 64, base.json another one"),
    ],
)
def test_what_cannot_be_extrapolated_is_refused(results, values, message, refused, printed):
    assert message in refused("compare", "base", "method", "--profile", profile("base", **values))
    assert printed("compare", "base", "method", "--profile", f"base={profile('other')}")
