"""Base training: a loader of random rows, gradient accumulation, warm-up and warm-down, logged as it goes."""

import torch


def loader(shards, batch, length, seed):
    """Yield inputs and targets."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        shard = shards[int(torch.randint(len(shards), (), generator=generator))]
        starts = torch.randint(len(shard) - length, (batch,), generator=generator)
        rows = torch.stack([torch.from_numpy(shard[s : s + length + 1].astype("int64")) for s in starts.tolist()])
        yield rows[:, :-1], rows[:, 1:]


def lr_multiplier(step, steps, warmup=0.05, warmdown=0.5):
    progress = step / steps
    return min(1.0, (progress + 1 / steps) / warmup, (1 - progress) / warmdown)


def base_train(model, shards, *, num_iterations=60, device_batch_size=16, total_batch_size=32, seed=0):
    """Train the model in place."""
    model.train()
    optimizer = model.setup_optimizer()
    batches = loader(shards, device_batch_size, model.config.sequence_len, seed)
    accumulation = total_batch_size // device_batch_size
    for step in range(num_iterations):
        for _ in range(accumulation):
            loss = model(*next(batches)) / accumulation
            loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * lr_multiplier(step, num_iterations)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 20 == 0:
            print(f"step {step:05d}/{num_iterations:05d} | loss: {loss.item() * accumulation:.6f}")
