#!/usr/bin/env bash
# Create the virtual environment .venv with all that the demo and the tests need. Does nothing if it exists, or if
# TIMEDRUN_INSTALLED is set, as in our container image.
set -euo pipefail
if [ -n "${TIMEDRUN_INSTALLED:-}" ]; then exit 0; fi
cd "$(dirname "$0")/.."
stamp=.venv/installed
if [ -f "$stamp" ] && [ "$stamp" -nt pyproject.toml ] && [ "$stamp" -nt constraints.txt ]; then exit 0; fi
"${PYTHON:-python3}" -m venv .venv
.venv/bin/python -m pip install --quiet --constraint constraints.txt torch
.venv/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[digits,vision,language,report,dev]'
touch "$stamp"
