"""MLPerf Training v4.0, ruleset 4.0.0: samples instead of steps; adds LoRA and GNN; ResNet's last round."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mlevents import keys
from mlevents.rounds import training_3_0, training_3_1
from mlevents.rounds.image_benchmarks import (
    CLOSED_FID_AND_CLIP,
    OPEN_FID_AND_CLIP,
    STABLE_DIFFUSION,
    fid_and_clip,
)
from mlevents.rounds.language_benchmarks import LLAMA2_70B_LORA
from mlevents.rounds.recommendation_benchmarks import GNN
from mlevents.rounds.ruleset import BenchmarkRules, Repair, RequiredKey, UpstreamDefect, named, next_round, replaced

# system_desc_checker.py, availability_options: checked from 4.0 on.
SYSTEM_STATUS_WORDS: Final = (
    "Available on-premise",
    "Available cloud",
    "Research, Development, or Internal (RDI)",
    "Preview",
)
# closed_common.yaml, which still lists two benchmarks without rule files: maskrcnn and rnnt.
BENCHMARK_WORDS: Final = (
    *("resnet", "ssd", "stable_diffusion", "maskrcnn", "gpt3", "dlrm_dcnv2", "bert", "rnnt", "unet3d", "gnn"),
    "llama2_70b_lora",
)


def by_samples_or_epochs(rules: BenchmarkRules) -> BenchmarkRules:
    """Return `rules` whose open evaluations may count in samples (as in the closed file) or epochs (open file)."""
    return replace(
        rules,
        open_keys=tuple(
            replace(rule, metadata=(), metadata_any=(keys.EPOCH_NUM, keys.SAMPLES_COUNT))
            if rule.key == keys.EVAL_ACCURACY
            else rule
            for rule in rules.open_keys
        ),
    )


def open_counts_epochs(name: str, rules: BenchmarkRules) -> UpstreamDefect:
    """Return the defect of open rule files that require epoch_num, which no log of the benchmark's reference has."""
    return UpstreamDefect(
        rule="open-counts-epochs",
        benchmark=rules.name,
        division=keys.OPEN,
        meaning="the open rule file requires epoch_num of every eval_accuracy, but the benchmark counts samples_count",
        source=f"training_{name}/open_{rules.name}.yaml versus closed_{rules.name}.yaml; fixed in 6.0.0 by "
        "mlcommons/logging pull request 461",
        repair=Repair(
            file=f"training_{name}/open_{rules.name}.yaml",
            text="'epoch_num' in v['metadata']",
            by="('epoch_num' in v['metadata']) | ('samples_count' in v['metadata'])",
        ),
        today=(RequiredKey(key=keys.EVAL_ACCURACY, occurrence="at least one", metadata=(keys.EPOCH_NUM,)),),
    )


def open_lora_unlisted(name: str) -> UpstreamDefect:
    """Return the defect of an open_common.yaml that omits a benchmark with an open rule file."""
    return UpstreamDefect(
        rule="open-lora-unlisted",
        benchmark=LLAMA2_70B_LORA.name,
        division=keys.OPEN,
        meaning="open_common.yaml does not list llama2_70b_lora, though the ruleset has an open_llama2_70b_lora.yaml",
        source=f"training_{name}/open_common.yaml versus closed_common.yaml",
        repair=Repair(file=f"training_{name}/open_common.yaml", text="'gnn']", by="'gnn', 'llama2_70b_lora']"),
        today=(named(keys.SUBMISSION_BENCHMARK, *BENCHMARK_WORDS[:-1]),),
    )


RULESET: Final = next_round(
    training_3_1.RULESET,
    "4.0.0",
    required=training_3_1.counted_in(keys.SAMPLES_COUNT, training_3_0.RULESET.required),
    listed=BENCHMARK_WORDS,
    dropped=("maskrcnn", "rnnt"),
    benchmarks=[
        replace(
            STABLE_DIFFUSION,
            unit="samples",
            progress=keys.SAMPLES_COUNT,
            open_keys=(fid_and_clip(keys.SAMPLES_COUNT, *OPEN_FID_AND_CLIP),),
            closed_keys=replaced(STABLE_DIFFUSION.closed_keys, fid_and_clip(keys.SAMPLES_COUNT, *CLOSED_FID_AND_CLIP)),
        ),
        by_samples_or_epochs(LLAMA2_70B_LORA),
        GNN,
    ],
    system_status_words=SYSTEM_STATUS_WORDS,
    defects=(open_lora_unlisted("4.0.0"), open_counts_epochs("4.0.0", LLAMA2_70B_LORA)),
    last_month="2024-05",
)
