#!/usr/bin/env bash
# Create or complete the virtual environment .venv with all that the demo needs; with the argument `dev`, also what the
# tests need. Does nothing if it is complete, or if TIMEDRUN_INSTALLED is set, as in our container image.
set -euo pipefail
[ -z "${TIMEDRUN_INSTALLED:-}" ] || exit 0; unset CDPATH; cd "$(dirname "$0")/.."
pip_install() { .venv/bin/python -m pip install --quiet --no-compile --constraint constraints.txt "$@"; }
extras="train,digits,vision,language,hugging-face,lightning,report,explorer${1:+,segmentation,$1}"
stamp=".venv/installed${1:+_$1}"; [[ "$stamp" -nt pyproject.toml && "$stamp" -nt constraints.txt ]] && exit 0
"${PYTHON:-python3}" -m venv .venv
pip_install torch; pip_install --editable ".[$extras]"
.venv/bin/python -c 'import torchvision' 2>/dev/null || { .venv/bin/python -m pip --quiet uninstall --yes torchvision  # the tests alone see another one
    [ "${1:-}" != dev ] || pip_install --no-deps --upgrade --target .venv/torchvision torchvision
    echo "scripts/setup.sh: torchvision is left out, as it does not load; '.venv/bin/timedrun doctor' says more" >&2; }
[ -z "${PYTHONDONTWRITEBYTECODE:-}" ] || .venv/bin/python -m compileall -qq -j 0 .venv/lib || true  # imports will not
touch "$stamp"
