#!/usr/bin/env bash
# Repeat the sweep: sweep.sh FOLDER_OF_CIFAR10 RESULTS FIRST_SEED RUNS
# logs.tar.xz holds one of `1 2` (seeds_1_2) and one of `3 1` (seed_3), which ran at the same time on two cores.
set -euo pipefail
configs=(
    'resnet8_baseline'
    'resnet8_baseline'
    'resnet8_baseline+log_bias'
    'resnet8_baseline'
    'resnet8_baseline'
    'resnet8_baseline-channels_last'
    'resnet8_baseline+mixup(alpha=0.2)'
    'resnet8_baseline+cutmix'
    'resnet8_baseline+cutout'
    'resnet8_baseline+colout'
    'resnet8_baseline+randaugment'
    'resnet8_baseline+factorize(min_channels=32)'
    'resnet8_baseline+ghost_batch_norm'
    'resnet8_baseline+squeeze_excite(min_channels=16,latent_channels=0.25)'
    'resnet8_baseline+stochastic_depth'
    'resnet8_baseline+weight_standardization'
    'resnet8_baseline+layer_freezing'
    'resnet8_baseline+selective_backprop'
    'resnet8_baseline+sam'
    'resnet8_baseline+swa'
    'resnet8_baseline+gradient_clipping'
    'resnet8_baseline+gradient_clipping(by=adaptive,threshold=0.01)'
    'resnet8_methods'
)
exec timedrun race "$(dirname "$0")/race.toml" "${configs[@]}" \
    --data cifar10 --data-folder "$1" --results "$2" --first-seed "$3" --runs "$4" --threads 1 \
    --ratios 0.5 1 --ablate \
    --b.data.flip alternating --c.loss binary_cross_entropy --e.precision bf16 \
    --d.optimizer.kind muon --d.optimizer.peak-lr 0.1 --d.optimizer.other-lr 0.1 --d.optimizer.momentum 0.85
