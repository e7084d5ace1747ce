#!/usr/bin/env bash
# Repeat the sweep: sweep.sh RESULTS
set -euo pipefail
exec timedrun race "$(dirname "$0")/race.toml" baseline_sdpa methods 'baseline_sdpa+gated_linear_units' \
    'baseline_sdpa+ema(half_life=10,update_interval=2)' baseline_sdpa+swa baseline_sdpa+sam \
    baseline_sdpa+gradient_clipping baseline_sdpa+layer_freezing baseline baseline_sdpa \
    --data topics --results "$1" --runs 3 --threads 1 --ratios 0.5 1 \
    --j.optimizer.kind lamb --j.optimizer.peak-lr 0.01 --j.optimizer.beta2 0.999
