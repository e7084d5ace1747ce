#!/usr/bin/env bash
# Run tests of logs and scores, which need no torch, under each newer Python that is installed here: digits of sums depend
# on the version, and whether a loop of links raises.
set -euo pipefail
unset CDPATH; cd "$(dirname "$0")/.."
for python in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9].*/bin/python /usr/bin/python3.1[2-9] /usr/local/bin/python3.1[2-9]; do
    if ! [ -x "$python" ]; then continue; fi
    "$python" -m venv --clear .venv/other
    .venv/other/bin/python -m pip install --quiet --no-compile --constraint constraints.txt pytest pytest-timeout hypothesis scipy \
        --requirement <("$python" -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")')
    OMP_NUM_THREADS=1 .venv/other/bin/python -m pytest -q -p no:cacheprovider tests/judging/scoring/test_olympic.py \
        tests/judging/scoring/test_score_summarizer.py tests/mlevents/rounds/test_convergence_points.py \
        tests/mlevents/mlcommons/test_package.py
done
