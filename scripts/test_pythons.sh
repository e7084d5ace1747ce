#!/usr/bin/env bash
# Run tests of logs and scores, which need no torch, under each newer Python that is installed here, all at once.
# Digits of sums depend on the version, and whether a loop of links raises.
set -euo pipefail
cd "$(dirname "$0")/.."
under() {
    venv=".venv/$1"
    "$2" -m venv "$venv"
    "$venv/bin/python" -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' \
        | grep -v '^torch' > "$venv/requirements"
    "$venv/bin/python" -m pip install --quiet --no-compile --constraint constraints.txt --requirement "$venv/requirements" \
        pytest pytest-timeout hypothesis scipy
    OMP_NUM_THREADS=1 "$venv/bin/python" -m pytest -q -p no:cacheprovider tests/timedrun/submission/scoring/test_olympic.py \
        tests/timedrun/submission/scoring/test_score_summarizer.py tests/mlevents/rounds/test_convergence_points.py \
        tests/mlevents/mlcommons/test_package.py tests/mlevents/test_record.py
}
started=()
for version in 3.12 3.13 3.14; do
    # The shims of pyenv exist for versions that are not active, and fail.
    for python in "$(command -v "python$version" || true)" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python; do
        if "$python" -c "" 2>/dev/null; then
            echo "tests of logs and scores under $("$python" --version)"
            under "$version" "$python" & started+=("$!")
            break
        fi
    done
done
for one in "${started[@]}"; do wait "$one"; done
