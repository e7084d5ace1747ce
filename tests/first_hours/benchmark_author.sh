#!/usr/bin/env bash
# The first hour of someone with a benchmark of her own, from the template to a checked package. FOLDER: an empty one.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/walk.bash"
cd "$1"

run timedrun new benchmark spiral
run timedrun show spiral --diff baseline methods
sees 'label_smoothing'

# Mistakes are named; those of the training loop are in tests/timedrun/commands/test_new.py and run/test_timed_run.py.
cp -r spiral wrong
sed -i 's/"spiral"/"wrong"/' wrong/*.py
sed -i 's/"Own choice."/wrong_name/' wrong/configs.py
fails 1 timedrun show wrong baseline
sees 'wrong/configs.py, line [0-9]* raised NameError'
run timedrun show # goes on without it
sees '^spiral: Two spirals' && sees '^image_classification'

run timedrun run spiral baseline --runs 3 --threads 1 --results set
sees '3 of 3 runs reached the target'
run timedrun package set --out package
sees 'strict check: pass'
mv spiral elsewhere # every verb knows the benchmark from its logs alone
run timedrun check set package
sees '1 package passes'
run timedrun reproduce package
sees 'true: 2 of 2 claimed values'
