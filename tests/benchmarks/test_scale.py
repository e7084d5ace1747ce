"""The projections of docs/scale.md: their formulas against independent computations, the page against the script."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.imagenet_feeding import IMAGES, epoch_seconds
from benchmarks.published_steps import published_set
from benchmarks.scale import growing_batch, projections, scaling, tables
from benchmarks.step_model import Scaling, closed_minutes, fitted, samples_to_target

ROOT = Path(__file__).parents[2]
SETS = json.loads((ROOT / "results/published/steps.json").read_text())
LOADERS = json.loads((ROOT / "results/loaders/loaders_synthetic.json").read_text())
MODEL = Scaling(
    benchmark="bert",
    fixed=0.01,
    per_sample=1e-4,
    fixed_evaluation=0.2,
    per_evaluation=8.0,
    gradient=335_174_458 * 2,
    inside=0.8 * 450e9,
    between=0.8 * 50e9,
    per_node=8,
)


def row(model: Scaling, gpus: int, batch: int) -> dict[str, Any]:
    """Return the row of steps.json that a machine of this model would have."""
    return {
        "name": f"{gpus} GPUs",
        "benchmark": model.benchmark,
        "accelerator": "NVIDIA H100-SXM5-80GB",
        "nodes": gpus // 8,
        "accelerators_per_node": 8,
        "global_batch": batch,
        "samples": 1e6,
        "samples_per_second": batch / model.step(gpus, batch),
        "evaluations": 5,
        "evaluation_seconds": model.evaluation(gpus),
        "startup_seconds": 0.0,
        "cold_seconds": 0.0,
        "minutes": 1.0,
    }


def ring_bytes(gpus: int, parts: list[list[int]]) -> int:
    """Run a ring all-reduce of `parts`, one list of numbers per GPU; return the numbers that the first GPU sends."""
    sent = 0
    for phase in (0, 1):  # reduce-scatter, all-gather
        for turn in range(gpus - 1):
            sending = [
                (gpu, (gpu + phase - turn) % gpus, parts[gpu][(gpu + phase - turn) % gpus]) for gpu in range(gpus)
            ]
            for gpu, part, value in sending:
                after = parts[(gpu + 1) % gpus]
                after[part] = value if phase else after[part] + value
                sent += gpu == 0
    return sent


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_an_all_reduce_in_a_node_takes_as_long_as_the_bytes_that_a_ring_sends(gpus: int) -> None:
    parts = [[10**gpu] * gpus for gpu in range(gpus)]
    sent = ring_bytes(gpus, parts)
    assert all(part == [int("1" * gpus)] * gpus for part in parts)
    assert MODEL.all_reduce(gpus) == pytest.approx(sent / gpus * MODEL.gradient / MODEL.inside)


def test_an_all_reduce_between_nodes_adds_a_ring_of_each_gpus_eighth() -> None:
    eighth = MODEL.gradient / 8
    between = ring_bytes(4, [[1] * 4 for _ in range(4)]) / 4 * eighth / MODEL.between
    assert MODEL.all_reduce(32) - MODEL.all_reduce(8) == pytest.approx(between)


@pytest.mark.parametrize("far", [(16, 768), (64, 1024)])
def test_a_fit_of_two_sets_finds_the_costs_that_made_them(far: tuple[int, int]) -> None:
    assert MODEL.exposed(*far) > 0
    found = fitted([row(MODEL, 8, 768), row(MODEL, *far)])
    for name in ("fixed", "per_sample", "fixed_evaluation", "per_evaluation"):
        assert getattr(found, name) == pytest.approx(getattr(MODEL, name)), name


def test_a_fit_of_one_set_takes_the_fixed_costs_as_given() -> None:
    found = fitted([row(MODEL, 8, 768)], fixed=MODEL.fixed, fixed_evaluation=MODEL.fixed_evaluation)
    assert found.per_sample == pytest.approx(MODEL.per_sample)
    assert found.per_evaluation == pytest.approx(MODEL.per_evaluation)


def test_two_sets_of_one_batch_per_gpu_are_refused() -> None:
    with pytest.raises(ValueError, match="8 GPUs and 16 GPUs have the same batch per GPU"):
        fitted([row(MODEL, 8, 768), row(MODEL, 16, 1536)])


def test_samples_grow_with_the_batch_as_in_the_reference_runs() -> None:
    assert samples_to_target("resnet", 32_768) == 56 * IMAGES
    assert samples_to_target("resnet", (32_768 + 49_152) // 2) == pytest.approx((56 + 68) / 2 * IMAGES)
    with pytest.raises(ValueError, match="no reference convergence point of resnet"):
        samples_to_target("resnet", 70_000)


def test_a_closed_time_has_the_evaluations_of_the_rules() -> None:
    without = replace(MODEL, benchmark="resnet", fixed_evaluation=0.0, per_evaluation=0.0)
    evaluated = replace(without, fixed_evaluation=60.0)
    assert closed_minutes(evaluated, 8, 3200) - closed_minutes(without, 8, 3200) == pytest.approx(9)  # 35.1 epochs / 4
    bert = replace(without, benchmark="bert"), replace(evaluated, benchmark="bert")
    assert closed_minutes(bert[1], 8, 448) - closed_minutes(bert[0], 8, 448) == pytest.approx(17)  # 2.41e6 / 150,000


def test_a_projection_to_the_measured_number_of_gpus_is_the_measured_time() -> None:
    rows = {(one["benchmark"], one["name"]): one for one in SETS}
    for found in projections(rows, {"resnet": (0.003, 0.008), "bert": (0.01, 0.03)}):
        if found["gpus"] == 8:
            assert found["efficiency"] == pytest.approx([1, 1], rel=1e-3)


def test_more_gpus_choose_batches_that_do_not_shrink() -> None:
    found = growing_batch(replace(MODEL, benchmark="resnet"))
    assert [one["global_batch"] for one in found] == sorted(one["global_batch"] for one in found)


def test_small_images_pass_at_the_loaders_rate_and_whole_ones_at_the_gpus() -> None:
    assert epoch_seconds(0, loader=1000, full=800) == pytest.approx(IMAGES / 1000)
    assert epoch_seconds(0, loader=1e9, full=800) == pytest.approx(IMAGES / 3200)  # 88 px, a quarter of the pixels
    assert epoch_seconds(26, loader=1000, full=800) == pytest.approx(IMAGES / 800)


def test_a_published_set_has_the_times_of_its_logs(published_sample: dict[str, Path], tmp_path: Path) -> None:
    source = published_sample["v2.0"] / "results/8xA100_80GB-methods/resnet"
    folder = tmp_path / "v2.0/MosaicML/results/8xA100_80GB-methods/resnet"
    folder.mkdir(parents=True)
    (tmp_path / "v2.0/MosaicML/systems").symlink_to(published_sample["v2.0"] / "systems")
    for number in range(3):  # three equal runs, of which the score drops two
        (folder / f"result_{number}.txt").write_bytes((source / "result_0.txt").read_bytes())
    events = [json.loads(line[8:]) for line in (source / "result_0.txt").read_text().splitlines() if ":::MLLOG" in line]
    times: dict[str, list[int]] = {}
    for event in events:
        times.setdefault(event["key"], []).append(event["time_ms"])
    evaluated = sum(times["eval_stop"]) - sum(times["eval_start"])
    found = published_set(folder)
    assert found is not None and found.nodes * found.accelerators_per_node == 8
    assert found.minutes == pytest.approx((times["run_stop"][0] - times["run_start"][0]) / 60_000, abs=1e-4)
    assert found.evaluation_seconds * found.evaluations == pytest.approx(evaluated / 1000, abs=0.01)
    assert found.epochs_per_second[1] == pytest.approx(
        1_281_168 / (times["epoch_stop"][1] - times["epoch_start"][1]) * 1000, abs=1
    )
    training = 60 * found.minutes - evaluated / 1000 - found.startup_seconds - found.cold_seconds
    assert found.samples / found.samples_per_second == pytest.approx(training, abs=0.1)


def test_the_page_and_the_results_have_the_scripts_numbers() -> None:
    result = scaling(SETS, LOADERS)
    page = (ROOT / "docs/scale.md").read_text()
    assert [one for one in tables(result) if one not in page] == []
    stored = json.loads((ROOT / "results/scale.json").read_text())
    assert tables(stored) == tables(json.loads(json.dumps(result)))


@pytest.mark.parametrize(("name", "columns"), [("synthetic", (4, 5)), ("caltech101", (6, 7))])
def test_the_loader_table_has_every_measured_loader(name: str, columns: tuple[int, int]) -> None:
    measured = json.loads((ROOT / f"results/loaders/loaders_{name}.json").read_text())["rows"]
    page = (ROOT / "docs/results.md").read_text().partition("| loader | store |")[2].partition("\n\n")[0]
    shown = [line.split("|") for line in page.splitlines()[2:]]
    for size, column in zip((224, 88), columns, strict=True):
        rates = [one["images_per_second"] for one in measured if one["size"] == size]
        texts = {f"{one['median']:,.0f} ({one['lowest']:,.0f} - {one['highest']:,.0f})" for one in rates}
        assert {cells[column].strip() for cells in shown} == texts
        assert len(shown) == len(rates)
