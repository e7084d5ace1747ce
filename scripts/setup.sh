#!/usr/bin/env bash
# Create or complete the virtual environment .venv with all that the demo needs; with the argument `dev`, also what the
# tests need. Does nothing if it is complete, or if TIMEDRUN_INSTALLED is set, as in our container image.
set -euo pipefail
if [ -n "${TIMEDRUN_INSTALLED:-}" ]; then exit 0; fi
unset CDPATH; cd "$(dirname "$0")/.."; pip() { .venv/bin/python -m pip --quiet "$@"; }
extras="train,digits,vision,language,hugging-face,lightning,report,explorer${1:+,segmentation,$1}"
stamp=".venv/installed${1:+_$1}"
if [ -f "$stamp" ] && [ "$stamp" -nt pyproject.toml ] && [ "$stamp" -nt constraints.txt ]; then exit 0; fi
"${PYTHON:-python3}" -m venv .venv
pip install --constraint constraints.txt torch; pip install --constraint constraints.txt --editable ".[$extras]"
.venv/bin/python -c 'import torchvision' 2>/dev/null || { pip uninstall --yes torchvision  # the tests alone see another one
    [ "${1:-}" != dev ] || pip install --no-deps --constraint constraints.txt --upgrade --target .venv/torchvision torchvision
    echo "scripts/setup.sh: torchvision is left out, as it does not load; '.venv/bin/timedrun doctor' says more" >&2; }
touch "$stamp"
