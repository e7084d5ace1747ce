#!/usr/bin/env bash
# Check style and types and run the tests in the virtual environment .venv. Arguments go to pytest.
set -euo pipefail
unset CDPATH; cd "$(dirname "$0")/.."
unset PYTHONDONTWRITEBYTECODE  # the tests start hundreds of processes, each of which would compile the sources anew
scripts/setup.sh dev; . scripts/environment.sh
command -v pytest >/dev/null || { echo "no pytest here; in a container use the image of --target test" >&2; exit 1; }
ruff check .
ruff format --check .
mypy
# One worker more than two processors: a fifth of the tests' time is waiting for ranks that fail and networks that are cut.
OMP_NUM_THREADS=1 exec python -m pytest -n 3 "$@"
