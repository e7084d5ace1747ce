#!/usr/bin/env bash
# Recompute the scores of a package, or repeat its runs with --run: PATH [--claims FILE] [--run]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
exec timedrun reproduce "$@"
