"""Named configs of llama31_8b: the full size, and a demonstration for a CPU."""

from dataclasses import replace

from language_model.gpt.configs import GptRunConfig
from language_model.gpt.settings import GptConfig, GptDataConfig
from timedrun.methods.training.schedule import StepSchedule
from timedrun.runner.config import EvaluationConfig, OptimizerConfig, SubmissionConfig

LLAMA31_8B = GptConfig(
    implementation="modern",
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    mlp_width=14_336,
    context=8192,
    vocabulary=128_256,
    dropout=0.0,
    activation="swiglu",
    query_key_norm=False,
    zero_projections=False,
    rms_epsilon=1e-5,
    rotary_base=500_000.0,
    rotary_scaling="llama3",
)
"""Llama 3.1 8B: 8,030,261,248 parameters (Grattafiori et al. 2024, arXiv 2407.21783, table 3). Initial weights are
those of timedrun's decoder."""


def c4_full() -> GptRunConfig:
    """Llama 3.1 8B on C4 by the closed rules, with the batch and the rate of the reference's fewest samples."""
    return GptRunConfig(
        benchmark="language_model.llama31_8b",
        name="c4_full",
        notes="The full size, which has not been run: `timedrun preflight llama31_8b full --data c4` computes memory"
        " and time. As in the closed rules (training_6.1.0 of mlperf-logging 4.1.68) and, in batch, peak rate and"
        " warm-up, as in the reference convergence point of batch 16. Own choices: the last rate, a tenth of the peak;"
        " micro-batches; full sharding. The division is closed because the open rule file of today fails every log of"
        " this benchmark. A token store of its vocabulary cannot be prepared: its tokens have 16 bits.",
        dataset="c4",
        global_batch=16,
        micro_batch=1,
        precision="bf16",
        sharding="full",
        model=LLAMA31_8B,
        data=GptDataConfig(sampling="blocks", eval_batch=8, eval_sequences=1024),
        schedule=StepSchedule(kind="cosine", steps=1_200_000, warmup_steps=16, final_factor=0.1),
        optimizer=OptimizerConfig(kind="adamw", peak_lr=4e-4, momentum=0.9, beta2=0.95, epsilon=1e-5, weight_decay=0.1),
        clip_norm=1.0,
        evaluation=EvaluationConfig(target=3.3, every=12_288, first=12_288),
        submission=SubmissionConfig(division="closed"),
    )


def topics_closed() -> GptRunConfig:
    """One layer of Llama's shape on the characters of Python's help topics, for a CPU."""
    return replace(
        c4_full(),
        name="topics_closed",
        notes="A demonstration: size, data, tokens, batch and the interval of evaluations are not the benchmark's, and"
        " 3.3 nats a character are easy. As in its closed rules (training_6.1.0 of mlperf-logging 4.1.68): sequence"
        " length, optimizer, form and length of the schedule, clipping, number of evaluation sequences. These set the"
        " size: a thread of a CPU takes minutes for one evaluation, most of them for the attention. The division is"
        " closed because the open rule file of today fails every log of this benchmark.",
        dataset="topics",
        global_batch=2,
        micro_batch=1,
        precision="fp32",
        sharding="none",
        budget_minutes=30.0,
        model=replace(LLAMA31_8B, layers=1, hidden=32, heads=2, kv_heads=1, mlp_width=112, vocabulary=128),
        data=GptDataConfig(eval_batch=4, eval_sequences=1024),
        schedule=StepSchedule(kind="cosine", steps=1_200_000, warmup_steps=4, final_factor=0.1),
        optimizer=OptimizerConfig(kind="adamw", peak_lr=0.02, momentum=0.9, beta2=0.95, epsilon=1e-5, weight_decay=0.1),
        evaluation=EvaluationConfig(target=3.3, every=112, first=112),
    )
