#!/usr/bin/env bash
# The first hour of someone with a benchmark of her own, from the template to a checked package. FOLDER: an empty one.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/walk.bash"
cd "$1"

run timedrun new benchmark spiral
fails 2 timedrun new benchmark spiral
sees 'exists'
run timedrun list
sees '^spiral: Two spirals' && sees '^image_classification'
run timedrun show spiral --diff baseline methods
sees 'label_smoothing'
run timedrun preflight spiral methods
sees 'strict pass' && sees 'not applicable'

# Mistakes are named.
cp -r spiral wrong
sed -i 's/"spiral"/"wrong"/; /supports=/d' wrong/*.py
fails 1 timedrun run wrong methods
sees 'add "methods" to supports'
fails 1 timedrun run wrong baseline --precision bf16
sees 'precision is bf16'
fails 1 timedrun run spiral baseline --ranks 2
sees 'ranks'
sed -i '/run.start_clock/d' wrong/train.py
fails 1 timedrun run wrong baseline
sees 'before run.start_clock'
sed -i 's/^SPEC/SPECS/' wrong/__init__.py
fails 2 timedrun run wrong baseline
sees 'defines no SPEC'
run timedrun list # goes on without it
sees '^spiral: Two spirals'

# A race is the shortest way to two sets; every verb knows the benchmark from its logs alone.
run timedrun race spiral baseline methods --runs 3 --threads 1 --results race
sees 'spirals_methods is' && sees 'strict: 6 of 6 logs pass, official: not applicable' && sees 'strict pass'
mv spiral elsewhere
run timedrun check race/spirals_baseline race/package
sees 'packages: 1 pass, 0 fail'
run timedrun score race/spirals_baseline race/spirals_methods
sees '3 of 3'
run timedrun compare race/spirals_baseline race/spirals_methods
sees 'interleaved pairs'
run timedrun plot race --out curves.png
run timedrun reproduce race/package
sees 'Reproduced: 4 of 4 claimed values'
fails 2 timedrun race --resume race # a name in a file runs no code of the working directory
sees 'no benchmark package .spiral'
