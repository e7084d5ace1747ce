#!/usr/bin/env bash
# Prepare a dataset before any run: BENCHMARK [CONFIG] --data D --data-folder FOLDER [options]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
exec timedrun prepare "$@"
