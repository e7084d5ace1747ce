#!/usr/bin/env bash
# The author of a benchmark makes a set of runs and a checked package. FOLDER: an empty one.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/walk.bash"
cd "$1"

run timedrun new benchmark spiral
run timedrun run spiral baseline --runs 3 --threads 1 --results set
sees '3 of 3 runs reached the target'
run timedrun package set --out package
sees 'strict check: pass'
sed -i 's/target=0.97, direction/target=0.96, direction/' spiral/__init__.py
fails 1 timedrun run spiral baseline --results set
sees 'they differ in target 0.97 there and 0.96 here'
mv spiral elsewhere # every verb knows the benchmark from its logs alone
run timedrun score set --csv sets.csv
sees '3 of 3' && [ "$(wc -l <sets.csv)" = 2 ]
run timedrun check set package
sees 'packages: 1 pass, 0 fail'
run timedrun reproduce package
sees 'Reproduced: 2 of 2 claimed values'
