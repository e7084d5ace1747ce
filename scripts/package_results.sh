#!/usr/bin/env bash
# Sets of results as one package in MLPerf's layout: RESULTS... --out FOLDER [--answers FILE]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
exec timedrun package "$@"
