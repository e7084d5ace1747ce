#!/usr/bin/env bash
# Race on data that comes with Python packages, five interleaved runs each: digits (standard baseline, tuned baseline,
# methods), then a small BERT (baseline, methods). Arguments go to both races.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
. scripts/environment.sh
timedrun race image_classification baseline_2022 baseline methods --data digits --threads 1 "$@"
exec timedrun race language_model baseline methods --data topics --threads 1 "$@"
