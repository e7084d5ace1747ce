"""Train a small GPT-2 on Python's help texts with transformers' Trainer, plain or with a method of timedrun.

    python train.py [--alibi] [--lr LR] [--steps STEPS]

The Trainer prints its evaluations; the seed is the variable SEED.
"""

import argparse
import os
import tempfile
from pydoc_data.topics import topics

import torch

from timedrun.integrations import fitting_torchvision
from timedrun.integrations.hugging_face import MethodsTrainer
from timedrun.methods import ALiBi, stack

with fitting_torchvision():
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

LENGTH = 128


def sequences() -> tuple[list[dict[str, torch.Tensor]], list[dict[str, torch.Tensor]]]:
    """Return the texts' bytes in sequences for training and, every 20th, for evaluation."""
    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    rows = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()[: len(text) // LENGTH * LENGTH].view(-1, LENGTH)
    mask = torch.ones(LENGTH, dtype=torch.long)
    parts: tuple[list[dict[str, torch.Tensor]], ...] = ([], [])
    for number, row in enumerate(rows):
        parts[number % 20 == 0].append({"input_ids": row, "attention_mask": mask, "labels": row})
    return parts[0], parts[1]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--alibi", action="store_true", help="ALiBi in place of learned positions")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    seed = int(os.environ.get("SEED", "0"))
    set_seed(seed)
    shape = {"vocab_size": 256, "n_positions": LENGTH, "n_embd": 128, "n_layer": 3, "n_head": 4}
    model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=None, eos_token_id=None))
    training, validation = sequences()
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            seed=seed,
            max_steps=arguments.steps,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=64,
            learning_rate=arguments.lr,
            warmup_steps=30,
            weight_decay=0.1,
            eval_strategy="steps",
            eval_steps=20,
            logging_steps=20,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
        )
        if arguments.alibi:
            speed = stack(ALiBi())
            trainer: Trainer = MethodsTrainer(
                speed, speed.model(model), settings, train_dataset=training, eval_dataset=validation
            )
        else:
            trainer = Trainer(model, settings, train_dataset=training, eval_dataset=validation)
        trainer.train()


if __name__ == "__main__":
    main()
