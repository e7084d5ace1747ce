#!/usr/bin/env bash
# Makes the virtual environment .venv with everything that the demo and the tests need; does nothing where it is there,
# or where TIMEDRUN_INSTALLED says that Python has it all already, as in our container image.
set -euo pipefail
if [ -n "${TIMEDRUN_INSTALLED:-}" ]; then exit 0; fi
cd "$(dirname "$0")/.."
stamp=.venv/installed
if [ -f "$stamp" ] && [ "$stamp" -nt pyproject.toml ] && [ "$stamp" -nt constraints.txt ]; then exit 0; fi
"${PYTHON:-python3}" -m venv .venv
.venv/bin/python -m pip install --quiet --constraint constraints.txt torch
.venv/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[digits,vision,language,report,dev]'
touch "$stamp"
