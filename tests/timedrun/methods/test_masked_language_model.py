"""Unpadding and the masked head compute what transformers' own models do, and refuse what they cannot."""

import copy
from typing import Any

import pytest
import torch

from tests.timedrun.methods.small_transformers import small_transformer
from timedrun.methods import ALiBi, FusedLayers, MaskedHead, NoEffect, Unpadding, stack
from timedrun.methods.recipes import recipe
from timedrun.methods.training.optim import OptimizerConfig

LENGTHS, LONGEST = (12, 3, 7, 1), 12
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.3}
BERT = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32, **STILL}
DISTILLED = {"dim": 16, "n_layers": 3, "n_heads": 2, "hidden_dim": 32, "dropout": 0.0, "attention_dropout": 0.0}
GPT = {"n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2, "bos_token_id": None, "eos_token_id": None}
SHAPES: dict[str, dict[str, Any]] = {"Bert": BERT, "Roberta": BERT, "DistilBert": DISTILLED, "GPT2": GPT}
KINDS = ("Bert", "Roberta", "DistilBert")


def make_model(kind: str = "Bert", head: str = "ForMaskedLM", **settings: Any) -> Any:
    """Return a small model of transformers, in training mode, without dropout unless it is given."""
    return small_transformer(kind + head, vocab_size=60, **SHAPES[kind] | settings).train()


def batch_of(model: Any, left: bool = False, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return a batch padded to the right, or to the left, of which about two fifths of the tokens have a label."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(5, 60, (len(LENGTHS), LONGEST), generator=generator)
    mask = torch.arange(LONGEST) < torch.tensor(LENGTHS)[:, None]
    mask = mask.flip(1) if left else mask
    labelled = mask & (torch.rand(tokens.shape, generator=generator) < 0.4)
    batch = {"input_ids": tokens.where(mask, model.config.pad_token_id), "attention_mask": mask.long()}
    batch["labels"] = tokens.where(labelled, -100)
    return batch | ({"token_type_ids": tokens % 2} if type(model).__name__.startswith("Bert") else {})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize(
    "methods",
    [
        (Unpadding(),),
        (MaskedHead(),),
        (MaskedHead(last_layer_subset=False), Unpadding()),
        (Unpadding(), MaskedHead(), FusedLayers()),
    ],
)
def test_losses_gradients_and_logits_are_the_models_own(tmp_path, kind, checkpointed, methods):
    own = make_model(kind)
    speed = stack(*(method for method in methods if kind != "DistilBert" or method.name != "fused_layers"))
    fast = speed.model(copy.deepcopy(own))
    assert fast.state_dict().keys() == own.state_dict().keys()
    if checkpointed:
        fast.activation_checkpointing_enable()
    for left in (False, True):
        batch = batch_of(own, left)
        speed.before_step(fast, 0, 0.0)
        expected, found = own(**batch), fast(**batch)
        torch.testing.assert_close(found.loss, expected.loss, rtol=1e-6, atol=1e-6)
        if MaskedHead in map(type, methods):
            rows = batch["labels"] != -100
            torch.testing.assert_close(found.logits[0], expected.logits[rows], rtol=1e-4, atol=1e-5)
        expected.loss.backward()
        found.loss.backward()
        for parameter, other in zip(own.parameters(), fast.parameters(), strict=True):
            torch.testing.assert_close(other.grad, parameter.grad, rtol=1e-4, atol=1e-6)
        speed.after_step(fast)
        with torch.no_grad():
            expected, found = own.eval()(**batch), copy.deepcopy(fast).eval()(**batch)
        real = batch["attention_mask"].bool()
        torch.testing.assert_close(found.loss, expected.loss, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(found.logits[real], expected.logits[real], rtol=1e-4, atol=1e-5)
        own.train()
    speed.verify()
    fast.save_pretrained(tmp_path)
    loaded = type(own).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(loaded(**batch).logits, own.eval()(**batch).logits, rtol=0, atol=0)


def test_rows_in_16_bits_on_a_cpu_are_filled_up():
    own, batch, counts = make_model(), batch_of(make_model()), []
    fast, _ = Unpadding().model(copy.deepcopy(own))
    fast.bert.encoder.register_forward_pre_hook(lambda encoder, args: counts.append(args[0].shape[1]))
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(fast(**batch).loss, own(**batch).loss, rtol=0.01, atol=0)
    assert counts == [128]


def test_dropout_still_drops():
    model = stack(Unpadding(), MaskedHead()).model(make_model(attention_probs_dropout_prob=0.5))
    losses = {model(**batch_of(model)).loss.item() for _ in range(3)}
    assert len(losses) == 3


def test_a_batch_without_padding_and_with_labels_everywhere_is_no_effect():
    model = make_model()
    speed = stack(Unpadding(), MaskedHead())
    model = speed.model(model)
    tokens = torch.full((2, 6), 7)
    for given in ({}, {"attention_mask": torch.ones_like(tokens)}):
        speed.before_step(model, 0, 0.0)
        torch.testing.assert_close(model(tokens, labels=tokens, **given).loss, make_model()(tokens, labels=tokens).loss)
        speed.after_step(model)
    with pytest.raises(NoEffect, match="changed nothing in this run: unpadding, masked_head"):
        speed.verify()


def test_what_cannot_be_done_is_refused_in_words():
    for method in (Unpadding(), MaskedHead()):
        for other in (make_model(head="ForSequenceClassification"), make_model("GPT2", "LMHeadModel")):
            words = f"{method.name} found no BertForMaskedLM, .* in {type(other).__name__}"
            with pytest.raises(NoEffect, match=words):
                method.model(other)
        with pytest.raises(ValueError, match=f"{method.name} needs an encoder"):
            method.model(make_model(is_decoder=True))
        twice, _ = method.model(make_model())
        with pytest.raises(NoEffect, match="of transformers without it"):
            method.model(twice)
    with pytest.raises(ValueError, match="unpadding and alibi both set the mask"):
        stack(Unpadding(), ALiBi())
    model = stack(MaskedHead(), Unpadding()).model(make_model())
    batch = batch_of(model)
    everywhere = batch | {"labels": batch["input_ids"]}
    for mode in (model.train(), model.eval()):
        with pytest.raises(ValueError, match="would change the loss, which has labels at padding; set them to -100"):
            mode(**everywhere)
    with pytest.raises(ValueError, match="everything else by keyword"):
        model(batch["input_ids"], batch["attention_mask"])
    with pytest.raises(ValueError, match="other rows than output_hidden_states would return"):
        model(**batch, output_hidden_states=True)
    with pytest.raises(ValueError, match=r"attention_mask \[batch, tokens\], not \[4, 1, 1, 12\]"):
        model(**batch | {"attention_mask": batch["attention_mask"][:, None, None]})


def test_a_trainer_with_the_recipe_takes_the_plain_trainers_steps(tmp_path):
    pytest.importorskip("accelerate")
    from transformers import Trainer, TrainingArguments

    from timedrun.methods.integrations.hugging_face import MethodsTrainer

    settings = TrainingArguments(
        str(tmp_path), max_steps=8, per_device_train_batch_size=4, report_to="none", disable_tqdm=True, use_cpu=True
    )
    adam = OptimizerConfig(kind="decoupled_adamw", peak_lr=3e-3, beta2=0.98, epsilon=1e-6, weight_decay=1e-5)
    found = []
    for fast in (False, True):
        model, optimizer, schedule, speed, _ = recipe("bert", make_model(), steps=8, batch=4, optimizer=adam)
        if not fast:
            model = make_model()
            optimizer = torch.optim.AdamW(model.parameters(), 3e-3, (0.9, 0.98), 1e-6, 1e-5 / 3e-3)
        rate, shapes = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule.factor), []
        batches = [batch_of(model, seed=seed) for seed in range(16)]
        data = [{name: field[row] for name, field in batch.items()} for batch in batches for row in range(4)]
        given = {"train_dataset": data, "eval_dataset": data, "optimizers": (optimizer, rate)}
        given["compute_metrics"] = lambda each, shapes=shapes: shapes.append(each.predictions.shape) or {}
        trainer = MethodsTrainer(speed, model, settings, **given) if fast else Trainer(model, settings, **given)
        losses = [trainer.train().training_loss, trainer.evaluate()["eval_loss"]]
        found.append((losses, shapes))
    assert found[1] == (pytest.approx(found[0][0], rel=1e-5), found[0][1]) and shapes == [(64, LONGEST, 60)]
    assert losses[1] < losses[0]
    assert speed.report == [
        "unpadding: 3 layers on tokens without padding",
        "masked_head: head and last layer at labels alone",
    ]
