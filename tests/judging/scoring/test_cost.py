"""Costs of times to train: a given price, a dated list price, or the reason for none."""

import json
import re
import shutil
from datetime import date
from pathlib import Path

import pytest

from judging.ground.errors import UsageError
from judging.scoring.cost import PriceList, cost, cost_on, machines, prices_of

LIST = PriceList()


def described(folder: Path, name: str, each: object = "8", nodes: object = "1") -> Path:
    """A log's path next to the description of a system with these accelerators."""
    (folder / "run_0").mkdir(parents=True)
    fields = {"accelerator_model_name": name, "accelerators_per_node": each, "number_of_nodes": nodes}
    (folder / "run_0" / "system.json").write_text(json.dumps(fields))
    return folder / "result_0.txt"


def test_a_cost_is_hours_times_price(tmp_path):
    given = cost(tmp_path / "result_0.txt", 23.789, 32.77)
    assert given.usd == pytest.approx(12.9927, abs=1e-4) and given.date is None
    listed = cost(described(tmp_path, "NVIDIA A100-SXM4-80GB", nodes=2.0), 30.0, LIST)
    price = next(machine.usd_per_hour for machine in machines() if "p4de" in machine.offer)
    assert listed.usd == pytest.approx(price) and listed.usd_per_hour == pytest.approx(2 * price)
    assert "list price of 2026-" in str(listed) and "2 x AWS p4de" in str(listed)


@pytest.mark.parametrize(
    ("name", "each"),
    [
        *(("NVIDIA A40", "8"), ("NVIDIA A100-SXM4-80GB", "4"), ("N/A", "0"), ("N/A", "N/A")),
        # Names that contain another one.
        *((f"NVIDIA {name}", "8") for name in ("L40S", "GB200", "GB200-SXM-180GB", "H200 NVL")),
    ],
)
def test_an_unknown_system_has_no_cost_and_says_so(tmp_path, name, each):
    found = cost(described(tmp_path, name, each), 30.0, LIST)
    assert found.usd is None and "give its --price" in str(found)
    assert cost(tmp_path / "elsewhere" / "result_0.txt", 30.0, LIST).usd is None
    assert cost(tmp_path, None, 1.0).reason == "there is no score"


def test_every_list_price_is_dated_and_has_its_source():
    for machine in machines():
        assert machine.offer and re.search(r"transcribed in github\.com/.+/.+\.(json|go|yml)$", machine.source)
        assert date(2026, 1, 1) <= date.fromisoformat(machine.date) <= date(2026, 12, 31)


@pytest.mark.parametrize(
    ("name", "each", "usd", "offer"),
    [
        ("NVIDIA H100 80GB HBM3", "8", 55.04, "AWS p5.48xlarge"),  # the name that torch has
        ("NVIDIA H100 80GB HBM3", "2", 2 * 3.49, "RunPod"),
        ("NVIDIA A100-SXM4-40GB", "1", 3.6734, "GCP a2-highgpu-1g"),
        ("NVIDIA A100 80GB PCIe", "4", 14.692, "Azure NC96ads"),
        ("NVIDIA H200", "8", 63.296, "AWS p5en"),
        ("NVIDIA B200-SXM-180GB", "8", 113.9328, "AWS p6-b200"),
        ("AMD Instinct MI300X 192GB HBM3", "8", 48.0, "Azure ND96isr_MI300X"),
        ("NVIDIA L4", "1", 0.8048, "AWS g6.xlarge"),
        ("Tesla T4", "4", 3.912, "AWS g4dn.12xlarge"),
        ("Tesla V100-SXM2-16GB", "8", 24.48, "AWS p3.16xlarge"),
    ],
)
def test_a_system_is_found_by_the_name_and_number_of_its_accelerators(tmp_path, name, each, usd, offer):
    found = cost(described(tmp_path, name, each), 60.0, LIST)
    assert found.usd == pytest.approx(usd) and found.offer.startswith(offer)


def test_a_system_without_accelerators_is_found_by_its_processor_and_cores():
    system = {"accelerator_model_name": "N/A", "accelerators_per_node": "0", "number_of_nodes": "2"}
    system |= {"host_processor_model_name": "AMD EPYC 9R14", "host_processors_per_node": "2"}
    found = cost_on(system | {"host_processor_core_count": "96"}, 30.0, LIST)
    assert found.usd == pytest.approx(11.12832) and "2 x AWS m7a.48xlarge" in found.offer
    half = cost_on(system | {"host_processor_core_count": "48"}, 30.0, LIST)
    assert half.usd is None and "AMD EPYC 9R14, 96 cores a node" in str(half)


def test_an_offer_is_chosen_by_its_text_and_the_range_of_all_is_stated(tmp_path):
    log = described(tmp_path, "NVIDIA H100-SXM5-80GB")
    assert "AWS p5.48xlarge on demand, us-east-1; of 7 offers from $27.92 to $98.32)" in str(cost(log, 60.0, LIST))
    (price,) = prices_of(["list:coreweave"])
    assert cost(log, 60.0, price).usd == pytest.approx(49.24)
    with pytest.raises(UsageError, match="no offer contains 'nobody'"):
        prices_of(["list:nobody"])


OWN = """[[machine]]
processor = "Own"
cores = 4
usd_per_hour = 0.5
offer = "our server"
date = 2026-11-01
source = "our invoice"
"""


def test_a_list_of_ones_own_takes_the_place_of_timedruns(tmp_path, make_set, told, printed, refused):
    own = make_set(tmp_path / "own", times=[28.0, 29.0, 30.0, 31.0, 32.0])
    system = {"accelerator_model_name": "N/A", "accelerators_per_node": "0", "number_of_nodes": 1}
    system |= {"host_processor_model_name": "Own", "host_processors_per_node": 1, "host_processor_core_count": 4}
    for file in (tmp_path / "own").glob("run_*/system.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | system))
    (file := tmp_path / "own.toml").write_text(OWN)
    for words in (file, f"{file}:our"):
        (scored,) = told("score", own, "--price", words)
        assert scored["cost"]["usd"] == pytest.approx(0.25, rel=1e-3) and scored["cost"]["date"] == "2026-11-01"
    costs = told("compare", own, shutil.copytree(own, tmp_path / "again"), "--price", file)["costs"]
    assert [found["usd"] for found in costs] == pytest.approx([0.25] * 2, rel=1e-2)
    assert "our server" in printed("compare", own, "--price", file)
    told("explore", own, "--out", tmp_path / "own.html", "--price", file)
    assert "our server" in (tmp_path / "own.html").read_text()
    assert "no offer contains 'their'" in refused("score", own, "--price", f"{file}:their")
    assert "cheap is no price: give US dollars" in refused("score", own, "--price", "cheap")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "has tables [[machine]]"),
        ("[[machine]", "cannot be read as a price list: "),
        ("machine = 3", "machine is not a list"),
        (OWN + OWN.replace("0.5", '"cheap"'), "machine 2: invalid value for type, expected float @ $.usd_per_hour"),
        (OWN.replace('source = "our invoice"', ""), "machine 1: required field missing @ $.source"),
        (OWN + "gpus = 3", "machine 1: extra fields found (gpus)"),
        (OWN.replace("0.5", "-1"), "machine 1 (our server): needs a positive usd_per_hour"),
        (OWN.replace("cores = 4", ""), "machine 1 (our server): needs"),
        (OWN.replace("Own", "Own("), "machine 1 (our server): missing ), unterminated"),
        (OWN.replace("2026-11-01", '"yesterday"'), "machine 1 (our server): Invalid isoformat"),
        (None, "No such file"),
    ],
)
def test_what_is_no_price_list_is_refused_with_the_place(tmp_path, text, place):
    file = tmp_path / "own.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError) as refusal:
        prices_of([str(file)])
    assert str(refusal.value).startswith(str(file)) and place in str(refusal.value)


def test_score_and_compare_show_costs(tmp_path, make_set, told, printed, refused):
    slow = make_set(tmp_path / "slow", times=[58.0, 59.0, 60.0, 61.0, 62.0])
    fast = make_set(tmp_path / "fast", times=[29.0, 29.5, 30.0, 30.5, 31.0])
    said = printed("score", slow, "--price", "10")
    assert "cost     $10.00 at $10.00 per hour (given price) (unverified)" in said
    (scored,) = told("score", slow, "--price", "list")
    assert scored["cost"]["usd"] is None and "no list price" in scored["cost"]["reason"]
    costs = told("compare", slow, fast, "--price", "10", "40")["costs"]
    assert [cost["usd"] for cost in costs] == pytest.approx([10, 20], rel=1e-3)
    said = printed("compare", slow, fast, "--price", "10")
    assert "The first costs 2x as much as the second (unverified)." in said
    refused("compare", slow, fast, "--price", "1", "2", "3")
