#!/usr/bin/env bash
# Run the strict and MLCommons' checks on logs, results folders or packages: PATH... [--ruleset R] [--json]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
exec timedrun check "$@"
