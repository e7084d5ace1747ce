#!/usr/bin/env bash
# Race on data that comes with Python packages, five interleaved runs each: digits (standard baseline, tuned baseline,
# methods), then a small BERT (baseline, methods). With --cifar10 PATH, CIFAR-10's binary batches in PATH instead: a
# round of the three configs takes about 40 minutes on two cores, and --runs 1 is one round.
# Further arguments go to the races.
set -euo pipefail
cifar10=""
if [ "${1-}" = --cifar10 ]; then
    if [ ! -d "${2-}" ]; then
        echo "scripts/demo.sh: --cifar10 needs the folder of data_batch_1.bin to test_batch.bin; nothing was run" >&2
        exit 2
    fi
    cifar10="$(realpath "$2")"
fi
cd "$(dirname "$0")/.."
scripts/setup.sh
. scripts/environment.sh
if [ -n "$cifar10" ]; then
    threads=$(($(nproc) < 2 ? 1 : 2)) # as in image_classification/README.md
    exec timedrun race image_classification baseline_2022 baseline methods --data cifar10 --data-folder "$cifar10" \
        --threads "$threads" "${@:3}"
fi
timedrun race image_classification baseline_2022 baseline methods --data digits --threads 1 "$@"
exec timedrun race language_model baseline methods --data topics_mixed --threads 1 "$@"
