#!/usr/bin/env bash
# Style, types and tests, in the demo's environment. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
OMP_NUM_THREADS=1 exec .venv/bin/python -m pytest "$@"
