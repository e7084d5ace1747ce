"""Named configs of FineWeb: the task of the speed runs on GPUs, and the same recipes at a small size on a CPU."""

from dataclasses import replace

from language_model.gpt.configs import MUON, GptRunConfig
from language_model.gpt.settings import GPT2_DECODER, GptDataConfig
from timedrun.methods.training.schedule import StepSchedule
from timedrun.runner.config import EvaluationConfig, OptimizerConfig

FINEWEB_TARGET = 3.28
"""Nats per token of the first 10,485,760 tokens of FineWeb's validation shard: the target of the modded-nanogpt speed
runs, which llm.c's GPT-2 reaches after about 10 billion tokens in 45 minutes on 8 H100."""

FINEWEB_SMALL_TARGET = 5.55
"""Nats per token of the first 65,536 validation tokens in a vocabulary of 8,192, on Wikipedia: what small_baseline
reaches after 2,200 to 2,400 of its 3,000 steps."""

FINEWEB_SWITCHES = (
    *("positions", "normalisation", "activation", "query_key_norm", "zero_projections", "tied_head", "biases"),
    "document_attention",
)
"""Switches of fineweb_methods that the small config has, too."""


CPU_CONFIGS = ("fineweb_small_baseline", "fineweb_small_methods")
"""In fp32 on a CPU without instructions for bf16, where a step would take many times as long."""


def fineweb_baseline() -> GptRunConfig:
    """GPT-2 124M on FineWeb as in llm.c: 10.3 billion tokens, AdamW, cosine."""
    return GptRunConfig(
        benchmark="language_model.fineweb",
        name="fineweb_baseline",
        notes="llm.c's reproduction of GPT-2 124M (its discussion 481), which is the first record of modded-nanogpt:"
        " batch of 0.5 million tokens, 19,560 steps, rate 6e-4, warm-up of 700 steps, no dropout. Own choices: when to"
        " evaluate, and micro-batches. The schedule has not been run.",
        dataset="fineweb",
        global_batch=512,
        micro_batch=32,
        precision="bf16",
        compile=True,
        model=GPT2_DECODER,
        data=GptDataConfig(sampling="blocks", eval_batch=256, eval_tokens=10_485_760, format="shards"),
        schedule=StepSchedule(kind="cosine", steps=19_560, warmup_steps=700),
        optimizer=OptimizerConfig(
            kind="adamw", peak_lr=6e-4, momentum=0.9, beta2=0.95, weight_decay=0.1, decay_norms_and_biases=False
        ),
        evaluation=EvaluationConfig(target=FINEWEB_TARGET, every=250 * 512, first=15_000 * 512),
    )


def fineweb_methods() -> GptRunConfig:
    """The baseline with the parts and the optimizer of the modded-nanogpt speed runs, each a switch."""
    baseline = fineweb_baseline()
    return replace(
        baseline,
        name="fineweb_methods",
        notes="Parts of the modded-nanogpt records from June 2024 to January 2025; numbers are our own choice and were"
        " not tuned, and the schedule has not been run. Value embeddings and the untied head add 154 million parameters"
        " to the 124 million; each token reads a row of them.",
        model=replace(
            baseline.model,
            positions="rotary",
            normalisation="rms",
            activation="relu_squared",
            query_key_norm=True,
            zero_projections=True,
            tied_head=False,
            biases=False,
            logit_softcap=15.0,
            vocabulary_multiple=128,
            value_embeddings=3,
            document_attention=True,
            attention_window=1024,
        ),
        data=replace(baseline.data, sampling="documents"),
        schedule=StepSchedule(kind="trapezoid", steps=4_000, warmup_steps=0, cooldown_steps=1_600),
        window_warmup_steps=4_000,
        optimizer=replace(MUON, decay_norms_and_biases=False),
        evaluation=EvaluationConfig(target=FINEWEB_TARGET, every=125 * 512, first=2_500 * 512),
    )


def fineweb_small_baseline() -> GptRunConfig:
    """The baseline's recipe for minutes of a CPU: 4 layers of 128 on Wikipedia, 8,192 tokens of GPT-2's encoding."""
    baseline = fineweb_baseline()
    return replace(
        baseline,
        name="fineweb_small_baseline",
        notes="fineweb_baseline's recipe at a small size; the head is over the first 7,935 merges of GPT-2's encoding,"
        " since one over all 50,257 tokens would be most of the time. One run each of 1,500 steps ended at 5.77 (rate"
        " 3e-3, 300 steps of warm-up), 5.87 (2e-3, 100 steps; fp32 as well), 5.97 (1e-3), 6.06 (4e-3), 6.14 (8e-3) and"
        " 6.02 (half the batch, twice the steps, 1.5e-3); one of 3,000 steps at 5.53 (2e-3, 100 steps). Of 2,600 steps"
        " (3e-3, 300 steps) three seeds of five reached 5.55, after 2,200 or 2,300 steps; the others ended at 5.552"
        " and 5.559.",
        dataset="wikipedia",
        global_batch=4,
        micro_batch=0,
        model=replace(baseline.model, layers=4, hidden=128, heads=4, context=256, vocabulary=8_192),
        data=replace(baseline.data, eval_batch=16, eval_tokens=65_536),
        schedule=StepSchedule(kind="cosine", steps=3_000, warmup_steps=300),
        optimizer=replace(baseline.optimizer, peak_lr=3e-3),
        evaluation=EvaluationConfig(target=FINEWEB_SMALL_TARGET, every=100 * 4, first=2_000 * 4),
    )


def fineweb_small_methods() -> GptRunConfig:
    """The small baseline with the methods of fineweb_methods."""
    baseline, methods = fineweb_small_baseline(), fineweb_methods()
    model = replace(baseline.model, **{name: getattr(methods.model, name) for name in FINEWEB_SWITCHES})
    return replace(
        baseline,
        name="fineweb_small_methods",
        notes="The switches of fineweb_methods on the small baseline, without those that only cost time on a CPU: the"
        " window, whose mask is dense there, and the cap of logits, 0.14 of 0.5 s a step; with one head, as wide as the"
        " speed runs' heads, and a table of bigrams, five rows a token as in theirs. Tuned on the tuning split, one or"
        " two runs of 350 or 400 steps a setting. Loss after 400 steps: 5.71 without bigrams, 5.63 with them; 5.61 with"
        " AdamW's rate 48e-3 (72e-3: 5.61, 96e-3: 5.63), the same with 1, 2 and 4 heads; 5.59 with Muon's rate 0.014"
        " (0.01: 5.60, 0.028: 5.63), and with AdamW's beta 1 of 0.8 5.55, 0.7 5.53, 0.5 5.52, 0.3 5.53 (in each step:"
        " 5.61), of 0.7 with beta 2 of 0.98 5.52. After 350 steps with these two at 0.6 and 0.98: 5.57 and 5.57 (AdamW"
        " in each third step), 5.58 and 5.60 (second), 5.61 (fourth). In a race of 350 steps two of five"
        " seeds ended at 5.553 and 5.554 on the validation split, so there are 375.",
        model=replace(model, value_embeddings=2, heads=1, bigram_rows=5 * 8_192 + 1),
        data=replace(baseline.data, sampling="documents"),
        schedule=StepSchedule(kind="trapezoid", steps=375, warmup_steps=0, cooldown_steps=310),
        optimizer=replace(MUON, peak_lr=0.014, other_lr=48e-3, momentum=0.85, beta2=0.98, decay_norms_and_biases=False),
        adam_beta1=0.6,
        adam_every=3,
        evaluation=EvaluationConfig(target=FINEWEB_SMALL_TARGET, every=25 * 4, first=350 * 4),
    )
