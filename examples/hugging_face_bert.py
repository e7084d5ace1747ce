"""Train a small BERT on Python's help topics with transformers' Trainer as it comes: a peer, in a race of commands, of
`timedrun run language_model topics_mixed_methods`, with the same data, evaluation, model and hyper-parameters. What is
the Trainer's own stays: gradients are clipped to a norm of 1, and each token is masked by chance, without a limit."""

import argparse
import json
import os
import tempfile
from dataclasses import replace
from typing import Any

import torch

from language_model.configs import topics_mixed_baseline
from language_model.datasets import resolve
from language_model.model import import_transformers
from language_model.text.store import VOCABULARY, MaskedSequences, RaggedStore
from timedrun.methods.integrations import fitting_torchvision

with fitting_torchvision():
    import_transformers()
    from transformers import (
        BertConfig,
        BertForMaskedLM,
        BertTokenizer,
        DataCollatorForLanguageModeling,
        DataCollatorForTokenClassification,
        EvalPrediction,
        Trainer,
        TrainerCallback,
        TrainingArguments,
        set_seed,
    )

IGNORED = -100  # label of a token that is not predicted


def samples(store: RaggedStore) -> list[dict[str, Any]]:
    """Return the sequences of `store`, those for evaluation with the labels of the masks that it holds."""
    sequences = store.read(torch.arange(len(store)).numpy())
    labels = torch.full((len(sequences.tokens),), IGNORED)
    if isinstance(sequences, MaskedSequences):
        labels[sequences.masked] = torch.from_numpy(sequences.labels)
    rows = []
    for end, length, first in zip(sequences.lengths.cumsum(), sequences.lengths, sequences.first, strict=True):
        own = slice(end - length, end)
        row = {"input_ids": sequences.tokens[own].tolist(), "token_type_ids": [0] * first + [1] * (length - first)}
        row["attention_mask"] = [1] * int(length)
        rows.append(row | ({"labels": labels[own].tolist()} if isinstance(sequences, MaskedSequences) else {}))
    return rows


class UntilTarget(TrainerCallback):
    """Print when the training starts and what the evaluations say; end the training at the target."""

    def __init__(self, target: float) -> None:
        self.target = target

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        print("training starts", flush=True)

    def on_evaluate(self, _: Any, state: Any, control: Any, *, metrics: dict[str, float], **__: Any) -> None:
        print(f"step {state.global_step} accuracy {metrics['eval_accuracy']:.4f}", flush=True)
        control.should_training_stop = control.should_training_stop or metrics["eval_accuracy"] >= self.target


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    masked = prediction.label_ids != IGNORED
    return {"accuracy": float((prediction.predictions == prediction.label_ids)[masked].mean())}


def main() -> None:
    config = topics_mixed_baseline()
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=config.architecture.layers)
    parser.add_argument("--hidden", type=int, default=config.architecture.hidden)
    parser.add_argument("--heads", type=int, default=config.architecture.heads)
    parser.add_argument("--lr", type=float, default=config.optimizer.peak_lr)
    parser.add_argument("--initializer-range", type=float, default=config.architecture.initializer_range)
    parser.add_argument("--target", type=float, default=config.evaluation.target)
    parser.add_argument("--split", choices=("own", "tuning"), default="own")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SEED", "1")))
    parser.add_argument("--trainer", type=json.loads, default={}, help='of TrainingArguments: {"torch_compile": true}')
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    set_seed(arguments.seed)
    folder = resolve(replace(config.data, split=arguments.split), None)
    tokenizer = BertTokenizer(vocab=str(folder / VOCABULARY))
    masking = DataCollatorForLanguageModeling(tokenizer, mlm_probability=config.data.masked_fraction)
    labelled = DataCollatorForTokenClassification(tokenizer, label_pad_token_id=IGNORED)
    shape = BertConfig(
        vocab_size=config.architecture.vocabulary,
        hidden_size=arguments.hidden,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.heads,
        intermediate_size=4 * arguments.hidden,
        max_position_embeddings=config.architecture.positions,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=arguments.initializer_range,
    )
    batch, evaluation = config.global_batch, config.evaluation
    with tempfile.TemporaryDirectory() as output:
        settings = TrainingArguments(
            output,
            max_steps=config.schedule.steps,
            per_device_train_batch_size=batch,
            per_device_eval_batch_size=config.data.eval_batch,
            learning_rate=arguments.lr,
            warmup_steps=config.schedule.warmup_steps,
            adam_beta2=config.optimizer.beta2,
            adam_epsilon=config.optimizer.epsilon,
            weight_decay=config.optimizer.weight_decay / arguments.lr,  # the config's is not multiplied by the rate
            eval_strategy="steps",
            eval_steps=evaluation.every // batch,
            eval_delay=evaluation.first // batch,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=arguments.seed,
            use_cpu=True,
            **arguments.trainer,
        )
        Trainer(
            BertForMaskedLM(shape),
            settings,
            data_collator=lambda rows: (labelled if "labels" in rows[0] else masking)(rows),
            train_dataset=samples(RaggedStore(folder, "train")),
            eval_dataset=samples(RaggedStore(folder, "evaluation")),
            compute_metrics=accuracy,
            preprocess_logits_for_metrics=lambda logits, _: logits.argmax(-1),
            callbacks=[UntilTarget(arguments.target)],
        ).train()


if __name__ == "__main__":
    main()
