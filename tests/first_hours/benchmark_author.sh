#!/usr/bin/env bash
# The first hour of someone with a benchmark of her own, from the template to a checked package. FOLDER: an empty one.
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

# A race is the shortest way to two sets; every verb knows the benchmark from its logs alone.
run timedrun race spiral baseline methods --runs 3 --threads 1 --results race
sees 'spirals_methods is' && sees 'strict: 6 of 6 logs pass, official: not applicable' && sees 'strict pass'
sed -i 's/target=0.97, direction/target=0.96, direction/' spiral/__init__.py
fails 1 timedrun run spiral baseline --results race/spirals_baseline
sees 'they differ in target 0.97 there and 0.96 here'
mv spiral elsewhere
run timedrun export race --csv values.csv
sees 'Exported 6 runs'
run timedrun score race --csv sets.csv
sees '3 of 3' && [ "$(wc -l <sets.csv)" = 3 ]
run timedrun check race/spirals_baseline race/package
sees 'packages: 1 pass, 0 fail'
run timedrun compare race/spirals_baseline race/spirals_methods
sees 'interleaved pairs'
run timedrun plot race --out curves.png
run timedrun reproduce race/package
sees 'Reproduced: 4 of 4 claimed values'
fails 2 timedrun race --resume race # a name in a file runs no code of the working directory
sees 'no benchmark package .spiral'
