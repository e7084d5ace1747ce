#!/usr/bin/env bash
# The author of a benchmark races its configs. FOLDER: an empty one.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/walk.bash"
cd "$1"

# Every verb knows the benchmark from its logs alone.
run timedrun new benchmark spiral
run timedrun race spiral baseline methods --runs 1 --threads 1 --results race
sees 'spirals_methods is' && sees 'strict: 2 of 2 logs pass, official: not applicable'
mv spiral elsewhere
run timedrun export race --csv values.csv
sees 'Exported 2 runs'
run timedrun compare race/spirals_baseline race/spirals_methods
sees 'as sides of one race'
run timedrun plot race --out curves.png
fails 2 timedrun race --resume race # a name in a file runs no code of the working directory
sees 'no benchmark package .spiral'
