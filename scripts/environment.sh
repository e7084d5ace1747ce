#!/usr/bin/env bash
# Sourced by the other scripts: put timedrun on the path, from the repository's .venv if it exists.
set -euo pipefail
unset CDPATH; root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
if [ -d "$root/.venv" ]; then PATH="$root/.venv/bin:$PATH"; fi
if ! command -v timedrun >/dev/null; then
    echo "timedrun is not installed here; run $root/scripts/setup.sh first" >&2
    exit 1
fi
