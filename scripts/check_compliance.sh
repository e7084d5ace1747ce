#!/usr/bin/env bash
# Strict and MLCommons' checks of logs, results folders or packages: PATH... [--ruleset R] [--json]
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
exec timedrun check "$@"
