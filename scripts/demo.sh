#!/usr/bin/env bash
# Race on data that comes with Python packages, five interleaved runs each: digits (standard baseline, tuned baseline,
# methods), then a small BERT (baseline, methods). With --cifar10 PATH, CIFAR-10 in PATH instead (about an hour).
# Further arguments go to the races.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
. scripts/environment.sh
if [ "${1-}" = --cifar10 ]; then
    exec timedrun race image_classification baseline methods --data cifar10 --data-folder "$2" "${@:3}"
fi
timedrun race image_classification baseline_2022 baseline methods --data digits --threads 1 "$@"
exec timedrun race language_model baseline methods --data topics_mixed --threads 1 "$@"
