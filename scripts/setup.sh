#!/usr/bin/env bash
# Create or complete the virtual environment .venv with all that the demo needs; with the argument `dev`, also what the
# tests need. Does nothing if it is complete, or if TIMEDRUN_INSTALLED is set, as in our container image.
set -euo pipefail
if [ -n "${TIMEDRUN_INSTALLED:-}" ]; then exit 0; fi
cd "$(dirname "$0")/.."
extras="train,digits,vision,language,report,explorer${1:+,$1}"
stamp=".venv/installed${1:+_$1}"
if [ -f "$stamp" ] && [ "$stamp" -nt pyproject.toml ] && [ "$stamp" -nt constraints.txt ]; then exit 0; fi
"${PYTHON:-python3}" -m venv .venv
.venv/bin/python -m pip install --quiet --constraint constraints.txt torch
.venv/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[$extras]"
if ! problem="$(.venv/bin/python -c 'import torchvision' 2>&1)"; then # it came from another index, for another torch
    build="$(.venv/bin/python -c 'import torch; print(torch.__version__.partition("+")[2])')"
    pair="--force-reinstall --no-deps --index-url https://download.pytorch.org/whl/$build torchvision"
    # shellcheck disable=SC2086  # words
    .venv/bin/python -m pip install --quiet --constraint constraints.txt $pair || echo "scripts/setup.sh: torchvision does not" \
        "fit torch, so that timm and Trainers cannot be imported (${problem##*$'\n'}); nothing else needs it. Where there is" \
        "a network: .venv/bin/pip install $pair; or: .venv/bin/pip uninstall torchvision" >&2
fi
touch "$stamp"
