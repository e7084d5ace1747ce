#!/usr/bin/env bash
# Repeat the sweep: sweep.sh FOLDER_OF_CIFAR10 RESULTS
# The last config has the optimizer of cifar10_baseline, with the best of six settings at 4 epochs (one run each): batch 250,
# rate 0.3, warm-up of half an epoch.
set -euo pipefail
configs=(
    'methods'
    'methods-whitening'
    'methods-channels_last'
    'methods-label_smoothing'
    'methods-progressive_resizing'
    'methods'
    'methods'
    'methods'
)
export TIMEDRUN_DATA=$1
exec timedrun sweep image_classification "${configs[@]}" --data cifar10 --results "$2" --runs 3 --threads 2 \
    --ratios 1 --baseline-ratios 0.75 1.5 \
    --f.data.flip random --g.model.initialisation kaiming \
    --h.global-batch 250 --h.schedule.warmup-epochs 0.5 --h.optimizer.kind sgd --h.optimizer.peak-lr 0.3 \
    --h.optimizer.momentum 0.9 --h.optimizer.weight-decay 1e-3 --h.optimizer.other-lr 0 --h.optimizer.other-momentum 0 \
    --h.optimizer.head-lr 0 --h.optimizer.no-unit-filters --h.optimizer.newton-schulz-iterations 5
