"""Time a product of two matrices of 2,048 rows and columns, in float32: what this processor can do at most.

OMP_NUM_THREADS=2 python results/cifar10_avx2/product.py > results/cifar10_avx2/product.txt
"""

import time

import torch

SIDE, ROUNDS = 2048, 20

left, right = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
times = []
for _ in range(ROUNDS):
    start = time.perf_counter()
    left @ right
    times.append(time.perf_counter() - start)
speeds = [2 * SIDE**3 / seconds / 1e9 for seconds in sorted(times)]
print(f"{torch.get_num_threads()} threads: {speeds[0]:.1f} GFLOP/s at most, {speeds[ROUNDS // 2]:.1f} at the median")
