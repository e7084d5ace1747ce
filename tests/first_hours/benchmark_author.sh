#!/usr/bin/env bash
# The first hour of someone with a benchmark of her own, from the template to a list that has it. FOLDER: an empty one.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/walk.bash"
cd "$1"

run timedrun new benchmark spiral
fails 2 timedrun new benchmark spiral
sees 'exists'
run timedrun show spiral --diff baseline methods
sees 'label_smoothing'

# Mistakes are named; those of the training loop are in tests/timedrun/commands/test_new.py and run/test_timed_run.py.
cp -r spiral wrong
sed -i 's/"spiral"/"wrong"/' wrong/*.py
sed -i 's/"Own choice."/wrong_name/' wrong/configs.py
fails 1 timedrun show wrong baseline
sees 'wrong/configs.py, line [0-9]* raised NameError'
sed -i 's/^SPEC/SPECS/' wrong/__init__.py
fails 2 timedrun run wrong baseline
sees 'defines no SPEC'
run timedrun list # goes on without it
sees '^spiral: Two spirals' && sees '^image_classification'
