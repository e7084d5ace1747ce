#!/usr/bin/env bash
# Makes a dataset ready before any run: BENCHMARK [CONFIG] --data D --data-folder FOLDER [options]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
exec timedrun prepare "$@"
