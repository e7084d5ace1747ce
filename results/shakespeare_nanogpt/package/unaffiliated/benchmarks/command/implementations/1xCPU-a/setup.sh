#!/usr/bin/env bash
# One-time set-up: installs the source of these runs, and its requirements in the versions of the runs.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python -m pip install --constraint "$here/constraints.txt" "$here/../timedrun"
python -m pip install --requirement "$here/constraints.txt"
