#!/usr/bin/env bash
# Repeats the runs of this system's command.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export PYTHONDONTWRITEBYTECODE=1  # keep the package unchanged
export PYTHONPATH="$here/../timedrun:$here/../timedrun/logging${PYTHONPATH:+:$PYTHONPATH}"
: "${1:?usage: run_and_time.sh NEW_FOLDER [FOLDER, with the source and the data of the command]}"
mkdir -p "$(dirname "$1")"
out="$(cd "$(dirname "$1")" && pwd)/$(basename "$1")"
work="${2:-}"
if test -z "$work"; then
    work="$(mktemp -d)"  # keep the package unchanged
    cp -R "$here/source/." "$work"
fi
cd "$work"
# Exit status 3: the target was not reached.
python -m timedrun run command "$here/run.toml" --runs 5 --first-seed 1 \
    --results "$out" || test $? -eq 3
