#!/usr/bin/env bash
# Start one timed run: BENCHMARK CONFIG [options of `timedrun run`], such as: image_classification methods --ranks 8
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
exec timedrun run "$@"
