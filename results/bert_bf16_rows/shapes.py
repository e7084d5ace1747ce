"""Measure what a new shape costs a matrix product in bf16 on a CPU, and attention forward and back by dtype."""

import statistics
import time

import torch
from torch import Tensor
from torch.nn import functional

torch.set_num_threads(2)


def milliseconds(call) -> float:
    began = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - began)


print(
    "product (rows, 2000) x (2000, 256) and (rows, 256) x (256, 1024), ms: the first call of a shape, the median after"
)
print("dtype     rows   first  later   first  later")
for dtype in (torch.bfloat16, torch.float32):
    for rows in (301, 317, 320, 333, 640, 1024, 1233, 1245):
        line = f"{str(dtype)[6:]:8s} {rows:5d}"
        for inner, outer in ((2000, 256), (256, 1024)):
            left, right = torch.randn(rows, inner).to(dtype), torch.randn(inner, outer).to(dtype)
            first, *later = (milliseconds(lambda left=left, right=right: left @ right) for _ in range(12))
            line += f"  {first:6.2f} {statistics.median(later):6.2f}"
        print(line)

print("\nattention of 4 heads of 64, ms forward and back, medians of 20 after 2")
print("sequences length   bfloat16        float32")
for count, length in ((3, 67), (9, 38), (4, 58), (3, 96), (8, 64), (16, 128)):
    line = f"{count:9d} {length:6d}"
    for dtype in (torch.bfloat16, torch.float32):
        taken: list[tuple[float, float]] = []
        for _ in range(22):
            q, k, v = (torch.randn(count, 4, length, 64).to(dtype).requires_grad_() for _ in range(3))
            outputs: list[Tensor] = []
            forward = milliseconds(
                lambda q=q, k=k, v=v, to=outputs: to.append(functional.scaled_dot_product_attention(q, k, v))
            )
            back = milliseconds(lambda output=outputs[0]: output.backward(output.detach()))
            taken.append((forward, back))
        forwards, backs = zip(*taken[2:], strict=True)
        line += f"  {statistics.median(forwards):5.2f} {statistics.median(backs):6.2f}"
    print(line)
