"""Settings of a GPT run and their contradictions."""

from dataclasses import dataclass, field, fields, replace
from typing import Literal, Self

import torch

from language_model.gpt.settings import GptConfig, GptDataConfig
from timedrun.methods import ALiBi, GradientClipping, SequenceLengthWarmup, stack
from timedrun.methods.training.schedule import StepSchedule
from timedrun.runner.config import LATER, RunConfig

WINDOW_INCREMENT = 64
"""Tokens by which a window grows during its warm-up."""
OF_BOTH = ("implementation", "layers", "hidden", "heads", "context", "vocabulary", "dropout", "attention")
MODERN_ONLY = tuple(field.name for field in fields(GptConfig) if field.name not in OF_BOTH)


@dataclass(frozen=True, kw_only=True)
class GptRunConfig(RunConfig):
    """Settings of a run of causal language modelling. A sample is one sequence of `model.context` tokens."""

    model: GptConfig
    data: GptDataConfig
    schedule: StepSchedule
    max_samples: int = 0
    """Maximum length of the run; 0: that of the schedule. After the schedule the rate stays at its final factor."""
    clip_norm: float = 1.0
    """Maximum norm of the gradients of all parameters together; 0: no clipping."""
    sharding: Literal["none", "full"] = "none"
    """full: several ranks each store and update a part of every parameter (torch's fully_shard); none: all of them."""
    adam_beta1: float = 0.9
    """muon: beta 1 of AdamW, which trains all parameters but the hidden matrices."""
    adam_every: int = field(default=1, metadata=LATER)
    """muon: steps between updates by AdamW, which have the sum of the gradients since the last (modded-nanogpt: 2)."""
    window_warmup_steps: int = 0
    """Steps over which the window of attention grows to `model.attention_window` from 64 tokens, by 64; an evaluation
    has the window of its step (modded-nanogpt, record of 24 November 2024)."""

    def stretched(self, ratio: float) -> Self:
        schedule = self.schedule.stretched(ratio)
        methods = tuple(
            replace(method, steps=schedule.steps) if isinstance(method, SequenceLengthWarmup) else method
            for method in self.methods
        )
        samples = schedule.steps * self.global_batch
        end = replace(self.evaluation, every=samples, first=samples)
        window = round(self.window_warmup_steps * ratio)
        return replace(
            self, schedule=schedule, max_samples=0, methods=methods, evaluation=end, window_warmup_steps=window
        )

    def problems(self) -> list[str]:
        """Return the settings that contradict each other or have no effect, as messages."""
        problems = []
        model, gpt2 = self.model, self.model.implementation == "gpt2"
        plain = GptConfig(implementation="gpt2")
        if gpt2 and (changed := [name for name in MODERN_ONLY if getattr(model, name) != getattr(plain, name)]):
            problems.append(f"model.{', model.'.join(changed)} has no effect in a gpt2 model.")
        if self.optimizer.kind == "muon" and gpt2:
            problems.append("optimizer muon needs --model.implementation modern: GPT-2 fuses three matrices into one.")
        if self.adam_every < 1 or (self.adam_every > 1 and self.optimizer.kind != "muon"):
            problems.append(f"adam_every is {self.adam_every}; it must be 1, or more with --optimizer.kind muon.")
        if self.methods and not gpt2 and any(isinstance(method, ALiBi) for method in self.methods):
            problems.append("method alibi needs --model.implementation gpt2; leave it out.")
        if self.clip_norm and any(isinstance(method, GradientClipping) for method in self.methods):
            problems.append("clip_norm would clip what gradient_clipping left; add --clip-norm 0 or leave it out.")
        if self.sharding == "full":
            problems += self._unsharded()
        if self.data.eval_sequences < 0:
            problems.append("data.eval_sequences is negative; --data.eval-sequences 0 evaluates the whole split.")
        if self.data.eval_tokens < 0 or self.data.eval_tokens and self.data.eval_sequences:
            problems.append(
                "data.eval_tokens counts consecutive tokens, data.eval_sequences sequences at even distances; set one"
                " of them, and not below 0."
            )
        warmup = self.window_warmup_steps
        if warmup and (model.attention_window <= WINDOW_INCREMENT or not 0 < warmup <= self.schedule.steps):
            problems.append(
                f"window_warmup_steps is {warmup}; it needs --model.attention-window above {WINDOW_INCREMENT}, and lies"
                f" within the schedule of {self.schedule.steps:,} steps."
            )
        if model.attention_window == model.context and not warmup:
            problems.append("model.attention_window is the context, without effect; set --model.attention-window 0.")
        whole = torch.zeros(1, model.context, dtype=torch.uint8)
        try:
            methods = stack(*self.methods)
            methods.enter(0, 0.0)
            methods.batch(whole, whole, model.vocabulary)
        except ValueError as error:
            problems.append(str(error))
        return problems

    def _unsharded(self) -> list[str]:
        """Return the settings that need whole parameters on each rank, as messages."""
        others = [method.name for method in self.methods if not isinstance(method, SequenceLengthWarmup)]
        fp16 = self.precision == "fp16"
        needed = {
            "--model.implementation modern": self.model.implementation != "modern",
            "--optimizer.kind adamw, since the others work on whole parameters": self.optimizer.kind != "adamw",
            "--precision bf16 or fp32, since the loss scale of fp16 would differ between ranks": fp16,
            "--no-compile": self.compile,
            f"no method that acts on whole parameters (leave out {', '.join(others)})": bool(others),
        }
        return [f"sharding full needs {change}." for change, lacking in needed.items() if lacking]

    @property
    def needs_documents(self) -> str:
        """The settings that need documents separated by the vocabulary's last token; empty if there are none."""
        wanted = {
            "data.sampling documents": self.data.sampling == "documents",
            "model.document_attention": self.model.document_attention,
        }
        return " and ".join(name for name, needed in wanted.items() if needed)

    def window(self, step: int) -> int:
        """Return the window of attention in tokens at optimizer step `step` (from 0); 0: none. In its warm-up it grows
        from `WINDOW_INCREMENT`, linearly in multiples of the increment."""
        final = self.model.attention_window
        if step >= self.window_warmup_steps or final <= WINDOW_INCREMENT:
            return final
        grown = WINDOW_INCREMENT + (final - WINDOW_INCREMENT) * step // self.window_warmup_steps
        return grown // WINDOW_INCREMENT * WINDOW_INCREMENT

    def evaluation_batch(self, ranks: int) -> int:
        """Return the sequences in one evaluation forward pass of each of `ranks` ranks, at most its micro-batch: an
        evaluation, which is not compiled, then fits where a training step does without compilation."""
        local = max(1, self.data.eval_batch // ranks)
        return min(local, self.micro_batch or local)

    @property
    def total_samples(self) -> int:
        """Maximum length of the run."""
        return self.max_samples or self.schedule.steps * self.global_batch
