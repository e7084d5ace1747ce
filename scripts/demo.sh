#!/usr/bin/env bash
# Race on data of Python packages, five interleaved runs each: digits, then a small BERT to 6.5 %. --cifar10 PATH: on the
# binary batches of CIFAR-10 there, 20 minutes a round on 2 cores, hours in fp32. Others go to races (--results: only here).
set -euo pipefail
unset CDPATH; lack="demo.sh: --cifar10 needs the folder of data_batch_1.bin to test_batch.bin; nothing was run"
[ "${1-}" != --cifar10 ] || data="$(cd "${2:-no folder}" 2>/dev/null && pwd)" || { echo "$lack" >&2; exit 2; }
case "${data-} $*" in " "*--re[ps]*) echo "demo.sh: two races share no --results; nothing was run" >&2; exit 2 ;; esac
cd "$(dirname "$0")/.."; scripts/setup.sh; . scripts/environment.sh
if [ -n "${data-}" ]; then
    set -- --data cifar10 --data-folder "$data" --precision "$(python -m timedrun.methods.training.number_formats bf16)" "${@:3}"
    exec timedrun race image_classification baseline_2022 baseline methods --threads 2 "$@"
fi
timedrun race image_classification baseline_2022 baseline methods --threads 2 --data digits "$@"
set -- --data topics_mixed --global-batch 8 --max-samples 6400 --evaluation.{target=0.065,first=1000,every=200} "$@"
timedrun race language_model baseline methods --threads 2 "$@"
