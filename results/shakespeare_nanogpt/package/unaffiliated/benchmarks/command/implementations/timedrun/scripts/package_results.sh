#!/usr/bin/env bash
# Package result sets in MLPerf's layout: RESULTS... --out FOLDER [--answers FILE]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
exec timedrun package "$@"
