#!/usr/bin/env bash
# Recomputes the scores of a package, or with --run runs its results again: PATH [--claims FILE] [--run]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
exec timedrun reproduce "$@"
