"""Train a small transformers BERT on a text of one's own, here Python's help topics, in a plain loop: the first side of
a race. The second, own_bert_recipe.py, has the methods of timedrun's recipe. The argument is the number of steps."""

import os
import pydoc_data.topics
import re
import sys
from collections import Counter
from collections.abc import Iterator

import torch
import transformers

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300
BATCH, RATE = 16, 1.5e-3


def texts() -> list[str]:
    """Return paragraphs, each a sequence of its own; those of a file are `Path(name).read_text().split("\\n\\n")`."""
    paragraphs = "\n\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics)).split("\n\n")
    return [paragraph for paragraph in dict.fromkeys(paragraphs) if len(paragraph) > 40]


def data() -> tuple[torch.nn.Module, Iterator[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    """Return the model, endless batches padded to their longest sequence, and the batch of the evaluation."""
    transformers.set_seed(int(os.environ.get("SEED", "1")))
    words = Counter(re.findall(r"[a-z]+|\S", " ".join(texts()).lower()))
    letters = sorted({*"".join(words)})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    vocabulary = dict.fromkeys([*pieces, *(word for word, _ in words.most_common(1800))])
    tokenizer = transformers.BertTokenizer(vocab={piece: number for number, piece in enumerate(vocabulary)})
    rows = [{"input_ids": tokenizer.encode(text, truncation=True, max_length=128)} for text in texts()]
    collate = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.3)
    shape = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512}
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.06}
    config = transformers.BertConfig(vocab_size=len(tokenizer), max_position_embeddings=128, **shape, **still)
    held_out, train = collate(rows[::5]), [row for number, row in enumerate(rows) if number % 5]
    loader = torch.utils.data.DataLoader(train, BATCH, shuffle=True, drop_last=True, collate_fn=collate)
    return transformers.BertForMaskedLM(config), (batch for _ in iter(int, 1) for batch in loader), held_out


@torch.no_grad()
def evaluate(model: torch.nn.Module, batch: dict[str, torch.Tensor], step: int) -> None:
    """Print the accuracy on the masked tokens of `batch`."""
    masked = batch["labels"] != -100
    guesses = model.eval()(**batch).logits.argmax(-1)[masked]
    print(f"step {step} accuracy {float((guesses == batch['labels'][masked]).float().mean()):.4f}", flush=True)


def main() -> None:
    model, batches, held_out = data()
    optimizer = torch.optim.AdamW(model.parameters(), RATE, (0.9, 0.98), 1e-6, weight_decay=1e-5 / RATE)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, round(STEPS * 80 / 1430), STEPS)
    print("training starts", flush=True)
    for step in range(1, STEPS + 1):
        model.train()(**next(batches)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 50 == 0 or step == STEPS:
            evaluate(model, held_out, step)


if __name__ == "__main__":
    main()
