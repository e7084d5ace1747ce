"""Named configs in the form of llama31_8b: a demonstration with a tiny model, on a CPU."""

from __future__ import annotations

from language_model.gpt.configs import GptRunConfig
from language_model.gpt.settings import GptConfig, GptDataConfig
from timedrun.config import EvaluationConfig, OptimizerConfig, SubmissionConfig
from timedrun.training.schedule import StepSchedule


def topics_closed() -> GptRunConfig:
    """A tiny decoder on the characters of Python's help topics, with the settings that the closed rules fix."""
    return GptRunConfig(
        benchmark="language_model.llama31_8b",
        name="topics_closed",
        notes="A demonstration: model, data, tokens, batch and the interval of evaluations are not the benchmark's, and"
        " 3.3 nats a character are easy. As in its closed rules (training_6.1.0 of mlperf-logging 4.1.68): sequence"
        " length, optimizer, form and length of the schedule, clipping, number of evaluation sequences. The division is"
        " closed because the open rule file of today fails every log of this benchmark.",
        dataset="topics",
        global_batch=4,
        micro_batch=2,
        budget_minutes=30.0,
        model=GptConfig(
            implementation="modern", layers=1, hidden=16, heads=1, context=8192, vocabulary=128, dropout=0.0
        ),
        data=GptDataConfig(eval_batch=4, eval_sequences=1024),
        schedule=StepSchedule(kind="cosine", steps=1_200_000, warmup_steps=4, final_factor=0.1),
        optimizer=OptimizerConfig(kind="adamw", peak_lr=0.02, momentum=0.9, beta2=0.95, epsilon=1e-5, weight_decay=0.1),
        clip_norm=1.0,
        evaluation=EvaluationConfig(target=3.3, every=32, first=32),
        submission=SubmissionConfig(division="closed"),
    )
