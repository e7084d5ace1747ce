"""Train a small GPT-2 on the Zen of Python with methods in transformers' Trainer, and resume it from a checkpoint."""

import codecs
import contextlib
import io
import tempfile

import torch

from timedrun.methods import EMA, ALiBi, SequenceLengthWarmup, stack
from timedrun.methods.integrations import fitting_torchvision
from timedrun.methods.integrations.hugging_face import MethodsTrainer

with fitting_torchvision():
    from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments, set_seed

LENGTH, STEPS = 64, 60


def sequences() -> list[dict[str, torch.Tensor]]:
    """Return the text's bytes in overlapping sequences; transformers shifts the labels itself, and its Trainer would
    count the first, which no token predicts."""
    with contextlib.redirect_stdout(io.StringIO()):
        import this
    tokens = torch.tensor(list(codecs.decode(this.s, "rot13").encode()))
    rows = tokens.unfold(0, LENGTH, 4)
    labels = rows.masked_fill(torch.arange(LENGTH) == 0, -100)
    mask = torch.ones(LENGTH, dtype=torch.long)
    return [
        {"input_ids": row, "attention_mask": mask, "labels": label} for row, label in zip(rows, labels, strict=True)
    ]


def trainer(folder: str, steps: int) -> MethodsTrainer:
    set_seed(0)
    speed = stack(
        ALiBi(train_sequence_length_scaling=0.5),
        SequenceLengthWarmup(steps=STEPS, duration=0.5, min_length=8, max_length=32),
        EMA(half_life=5, update_interval=1),
    )
    shape = {"vocab_size": 256, "n_positions": LENGTH, "n_embd": 64, "n_layer": 2, "n_head": 4}
    model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=None, eos_token_id=None))
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=16,
        learning_rate=3e-3,
        lr_scheduler_type="constant",
        save_steps=STEPS // 2,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    data = sequences()
    return MethodsTrainer(speed, speed.model(model), arguments, train_dataset=data, eval_dataset=data)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        trainer(folder, STEPS // 2).train()  # stops half-way, as after a crash
        resumed = trainer(folder, STEPS)
        resumed.train(resume_from_checkpoint=True)  # weights, optimizer and the methods' state
        print(*resumed.speed.report, sep="\n")
        loss = resumed.evaluate()["eval_loss"]  # of the averaged weights
        with resumed.speed.evaluation(resumed.model):
            resumed.save_model(f"{folder}/averaged")  # checkpoints hold the training weights
        saved, _ = ALiBi().model(GPT2LMHeadModel.from_pretrained(f"{folder}/averaged"))  # surgery is not in the file
    batch = {name: torch.stack([row[name] for row in sequences()]) for name in sequences()[0]}
    with torch.no_grad():
        print(f"loss of the averaged weights {loss:.3f}, after saving and loading {saved.eval()(**batch).loss:.3f}")


if __name__ == "__main__":
    main()
