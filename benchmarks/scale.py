"""Project times to train on other numbers of GPUs from published steps, and check it with published times.

Usage: python -m benchmarks.scale [--steps FILE] [--loaders FILE] [--json results/scale.json]
Prints the tables of docs/scale.md. Its input is made by `benchmarks/published_steps.py` from MLPerf's logs and
by `timedrun bench loader`; `step_model.py` has the model of a step, `imagenet_feeding.py` that of loaders.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from benchmarks.imagenet_feeding import feeding, feeding_tables
from benchmarks.step_model import (
    IMAGES,
    OVERLAP,
    REACHED,
    Row,
    Scaling,
    closed_minutes,
    fitted,
    gpus_of,
    samples_to_target,
    table,
)

FAMILIES: Final = {
    "ResNet-50, H100": (
        ("v4.0/HPE/HPE-Cray-XD670-Gen11-H100-SXM5-80GB_n1_mxnet_24.04",)
        + ("v4.0/HPE/HPE-Cray-XD670-Gen11-H100-SXM5-80GB_n2_mxnet_24.04",),
        ("v4.0/NVIDIA/eos_ngc24.04_mxnet", "v4.0/NVIDIA/eos_n8_ngc24.04_mxnet"),
        ("v3.1/Dell/2xXE9680x8H100-SXM-80GB", "v4.0/Oracle/8xBM.GPU.H100.8", "v4.0/smc-dc-power/8xSMC-H100-SXM-80GB")
        + ("v4.0/NVIDIA/eos_n316_ngc24.04_mxnet", "v3.1/NVIDIA/coreweave_hgxh100_n448_ngc23.04_mxnet"),
    ),
    "BERT-Large, H100": (
        ("v4.0/HPE/HPE-Cray-XD670-Gen11-H100-SXM5-80GB_n1_pytorch_23.09",)
        + ("v4.0/HPE/HPE-Cray-XD670-Gen11-H100-SXM5-80GB_n2_pytorch_23.09",),
        ("v4.0/Supermicro/SYS-421GE-TNHR2-LCC-1", "v4.0/Supermicro/SYS-421GE-TNHR2-LCC-8"),
        ("v4.1/Lambda/lambda_1cc_n2_H100-SXM-80GB_ngc24.04_nemo",)
        + ("v4.1/Lambda/lambda_1cc_n8_H100-SXM-80GB_ngc24.04_nemo", "v3.1/NVIDIA/eos_n434_ngc23.09_pytorch"),
    ),
    "BERT-Large, H200": (
        ("v5.0/HPE/HPE-Cray-XD670-H200-SXM5-141GB_n1_24.09", "v5.0/HPE/HPE-Cray-XD670-H200-SXM5-141GB_n2_24.09"),
        ("v5.0/Dell/XE9680x8H200-SXM-141GB", "v5.0/Oracle/8xBM.GPU.H200.8"),
        ("v5.0/Dell/2xXE9680Lx8H200-SXM-141GB", "v5.0/HPE/HPE-Cray-XD670-H200-SXM5-141GB_n4_24.09"),
    ),
    "BERT-Large, GB200": (
        ("v5.0/Dell/2xXE9712x4GB200", "v5.0/Dell/4xXE9712x4GB200"),
        ("v5.0/NVIDIA/tyche_ngpu8_ngc25.04_pytorch", "v5.0/NVIDIA/tyche_ngpu64_ngc25.04_pytorch"),
        ("v5.0/Dell/8xXE9712x4GB200", "v5.0/NVIDIA/tyche_ngpu512_ngc25.04_pytorch"),
    ),
}
"""Pairs of sets to fit, 8 and 16 GPUs and 8 and 64, and further sets to compare with."""
CONFIGS: Final = {
    "ResNet-50 `baseline`": ("v2.0/MosaicML/8xA100_80GB-baseline", "resnet"),
    "ResNet-50 `methods`": ("v2.0/MosaicML/8xA100_80GB-methods", "resnet"),
    "BERT-Large `baseline`": ("v2.1/MosaicML/8xA100_80GB-baseline", "bert"),
    "BERT-Large `methods`": ("v2.1/MosaicML/8xA100_80GB-methods", "bert"),
}


def checks(rows: dict[tuple[str, str], Row]) -> list[Row]:
    """Return predictions and measurements of every set of FAMILIES by each fit that did not use it."""
    found = []
    for family, (near, far, others) in FAMILIES.items():
        benchmark = "resnet" if family.startswith("ResNet") else "bert"
        sets = {name: rows[benchmark, name] for name in (*near, *far, *others)}
        fits = {
            "8": fitted([sets[far[0]]]),
            "8 and 16": fitted([sets[name] for name in near]),
            "8 and 64": fitted([sets[name] for name in far]),
        }
        used = {"8": far[:1], "8 and 16": near, "8 and 64": far}
        for name, row in sorted(sets.items(), key=lambda item: gpus_of(item[1])):
            gpus, batch = gpus_of(row), row["global_batch"]
            predictions = {
                label: (batch / model.step(gpus, batch), closed_minutes(model, gpus, batch))
                for label, model in fits.items()
                if name not in used[label]
            }
            if gpus > 8:
                found.append({"family": family, "set": name, "gpus": gpus, "global_batch": batch, **measured_of(row)})
                found[-1]["predicted"] = {
                    label: {
                        "samples_per_second": rate,
                        "minutes": minutes,
                        "error": rate / row["samples_per_second"] - 1,
                    }
                    | {"minutes_error": minutes / row["minutes"] - 1}
                    for label, (rate, minutes) in predictions.items()
                }
        found.append({"family": family, "fits": {label: asdict(model) for label, model in fits.items()}})
    return found


def measured_of(row: Row) -> Row:
    return {"samples_per_second": row["samples_per_second"], "minutes": row["minutes"]}


def projections(rows: dict[tuple[str, str], Row], fixed: dict[str, tuple[float, float]]) -> list[Row]:
    """Return the configs of 2022 on more GPUs at their own batch, with the least and the most fixed cost of a step."""
    found = []
    for config, (name, benchmark) in CONFIGS.items():
        row = rows[benchmark, name]
        batch, constant = row["global_batch"], row["cold_seconds"] + row["startup_seconds"]
        models = [fitted([row], one, gradient_bytes=4) for one in fixed[benchmark]]
        for gpus in (8 * 2**power for power in range(6) if batch % (8 * 2**power) == 0):
            steps = [model.step(gpus, batch) for model in models]
            minutes = [
                (constant + row["samples"] / batch * step + row["evaluations"] * model.evaluation(gpus)) / 60
                for step, model in zip(steps, models, strict=True)
            ]
            found.append(
                {
                    "config": config,
                    "gpus": gpus,
                    "per_gpu": batch // gpus,
                    "gradient_bytes": models[0].gradient,
                    "bytes_through_each_gpu": 2 * (gpus - 1) / gpus * models[0].gradient,
                    "all_reduce_seconds": models[0].all_reduce(gpus),
                    "exposed_seconds": max(model.exposed(gpus, batch) for model in models),
                    "step_seconds": steps,
                    "minutes": minutes,
                    "efficiency": [row["minutes"] * 8 / gpus / one for one in minutes],
                }
            )
    return found


def growing_batch(model: Scaling, per_gpu: Iterable[int] = (16, 24, 32, 48, 50, 64, 96, 128, 200, 400)) -> list[Row]:
    """Return the least closed time by number of GPUs, over the batches that the reference points cover."""
    found = []
    for gpus in (8 * 2**power for power in range(10)):
        times = []
        for batch in (gpus * each for each in per_gpu):
            try:
                times.append((closed_minutes(model, gpus, batch), batch))
            except ValueError:
                continue
        minutes, batch = min(times)
        samples = samples_to_target(model.benchmark, batch)
        found.append({"gpus": gpus, "global_batch": batch, "minutes": minutes, "epochs": samples / IMAGES})
    return found


def per_cent(values: Iterable[float]) -> str:
    return " - ".join(dict.fromkeys(f"{value:.0%}" for value in values))


def span(values: Iterable[float], digits: int = 1) -> str:
    return " - ".join(dict.fromkeys(f"{value:,.{digits}f}" for value in values))


def tables(result: Row) -> list[str]:
    """Return the tables of the page: checks, configs of 2022, growing batches."""
    labels = ("8", "8 and 16", "8 and 64")
    compared = [
        [row["family"], "/".join(row["set"].split("/")[:2]), str(row["gpus"])]
        + [f"{row['global_batch'] / row['gpus']:.0f}", f"{row['samples_per_second']:,.0f}"]
        + [
            f"{round(row['predicted'][one]['error'], 2) + 0.0:+.0%}" if one in row["predicted"] else "fitted"
            for one in labels
        ]
        + [f"{row['minutes']:.3f}"]
        + [f"{row['predicted'][one]['minutes']:.3f}" if one in row["predicted"] else "fitted" for one in labels[1:]]
        for row in result["checks"]
    ]
    projected = [
        [row["config"], str(row["gpus"]), str(row["per_gpu"]), f"{row['bytes_through_each_gpu'] / 1e6:,.0f}"]
        + [f"{1000 * row['all_reduce_seconds']:.1f}", f"{1000 * row['exposed_seconds']:.1f}"]
        + [span(1000 * one for one in row["step_seconds"]), span(row["minutes"]), per_cent(row["efficiency"])]
        for row in result["projections"]
    ]
    grown = [
        [str(row["gpus"]), f"{row['global_batch']:,}", f"{row['epochs']:.1f}", f"{row['minutes']:.2f}"]
        for row in result["growing_batch"]
    ]
    head = ["model, GPU", "round and submitter", "GPUs", "batch per GPU", "measured samples/s"]
    head += ["error of a fit of 8 GPUs", "8 and 16", "8 and 64", "measured minutes"]
    head += ["predicted by 8 and 16", "by 8 and 64"]
    configs = ["config", "GPUs", "batch per GPU", "MB through each GPU", "all-reduce, ms", "not hidden, ms"]
    return [
        table(head, compared),
        table([*configs, "step, ms", "minutes", "efficiency"], projected),
        table(["GPUs", "fastest global batch", "epochs", "minutes"], grown),
        *feeding_tables(result["feeding"]),
    ]


def scaling(sets: Sequence[Row], loaders: Row) -> Row:
    """Return all numbers of the page."""
    rows = {(row["benchmark"], row["name"]): row for row in sets}
    compared = checks(rows)
    fits = {row["family"]: row["fits"] for row in compared if "fits" in row}
    fixed: dict[str, list[float]] = {"resnet": [], "bert": []}
    for of_family in fits.values():
        for label in ("8 and 16", "8 and 64"):
            fixed[of_family[label]["benchmark"]].append(of_family[label]["fixed"])
    bounds = {name: (min(values), max(values)) for name, values in fixed.items()}
    return {
        "reached": REACHED,
        "overlap": OVERLAP,
        "fixed_seconds": bounds,
        "fits": fits,
        "checks": [row for row in compared if "set" in row],
        "projections": projections(rows, bounds),
        "growing_batch": growing_batch(Scaling(**fits["ResNet-50, H100"]["8 and 64"])),
        "feeding": feeding(sets, loaders),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=Path, default=Path("results/published/steps.json"))
    parser.add_argument("--loaders", type=Path, default=Path("results/loaders/loaders_synthetic.json"))
    parser.add_argument("--json", type=Path, default=Path("results/scale.json"))
    arguments = parser.parse_args()
    result = scaling(json.loads(arguments.steps.read_text()), json.loads(arguments.loaders.read_text()))
    arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    print(*tables(result), sep="\n\n")


if __name__ == "__main__":
    main()
