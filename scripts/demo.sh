#!/usr/bin/env bash
# Five timed runs each of a standard baseline, a tuned baseline and the methods on digits, interleaved; then the table.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
exec .venv/bin/timedrun race image_classification baseline_2022 baseline methods --data digits --threads 1 "$@"
