"""Train the BERT of own_bert.py, on its data and with its hyper-parameters, with the methods of the recipe `bert`."""

from own_bert import BATCH, RATE, STEPS, data, evaluate
from torch.optim.lr_scheduler import LambdaLR

from timedrun.methods.recipes import recipe
from timedrun.methods.training.optim import OptimizerConfig


def main() -> None:
    model, batches, held_out = data()
    adam = OptimizerConfig(kind="decoupled_adamw", peak_lr=RATE, beta2=0.98, epsilon=1e-6, weight_decay=1e-5)
    model, optimizer, schedule, speed, loss_of = recipe("bert", model, steps=STEPS, batch=BATCH, optimizer=adam)
    rate = LambdaLR(optimizer, schedule.factor)
    print("training starts", flush=True)
    for step in range(1, STEPS + 1):
        speed.before_step(model.train(), step - 1, (step - 1) / STEPS)
        loss_of(model(**speed.batch_dict(next(batches)))).backward()
        optimizer.step()
        optimizer.zero_grad()
        speed.after_step(model)
        rate.step()
        if step % 50 == 0 or step == STEPS:
            with speed.evaluation(model):
                evaluate(model, held_out, step)
    speed.verify()
    print(*speed.report, sep="\n")


if __name__ == "__main__":
    main()
