#!/usr/bin/env bash
# Repeat the sweep: sweep.sh FOLDER_OF_CIFAR10 RESULTS
# methods_by_sgd.json is cifar10_methods with cifar10_baseline's optimizer and batch and a warm-up of half an epoch: the best
# of six settings of SGD at 4 epochs, one run each.
set -euo pipefail
configs=(
    'methods'
    'methods-whitening'
    'methods-channels_last'
    'methods-label_smoothing'
    'methods-progressive_resizing'
    'methods'
    'methods'
    'methods_by_sgd.json'
)
results=$(realpath "$2")
export TIMEDRUN_DATA=$1
cd "$(dirname "$0")"
exec timedrun race race.toml "${configs[@]}" --data cifar10 --results "$results" --runs 3 --threads 2 \
    --ratios 1 --f.data.flip random --g.model.initialisation kaiming
