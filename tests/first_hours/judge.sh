#!/usr/bin/env bash
# The first hour of someone who must know whether a method is real: sides and figures. FOLDER: an empty one.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/walk.bash"
cd "$1"

# What cannot run is refused before the first run.
fails 2 timedrun race image_classification baseline 'baseline+emma'
sees 'emma' && sees 'ema'
fails 2 timedrun race image_classification baseline 'baseline+ema(half_live=8)'
sees 'half_live' && sees 'half_life'
[ ! -e runs ]

# A method added by name against a file, with a changed setting; a pair is too few for a verdict.
timedrun show image_classification methods --json >mine.json
run timedrun race image_classification --runs 1 --threads 1 --results race 'baseline+ema(half_life=8)' \
    mine.json-blurpool --a.optimizer.peak-lr 0.5 --a.optimizer.nesterov false --evaluation.target 0.5
sees 'too few pairs (1 < 3)' && sees 'run 2/2' && sees 'strict: 2 of 2 logs pass, official: 2 of 2'
sees 'skipped: MLPerf requires 5 runs per set, this race has 1 (use --runs 5)'
mapfile -t sets < <(ls -d race/*/)
run timedrun compare "${sets[0]}" "${sets[1]}"
sees 'interleaved'

run timedrun report race --what loss --figure loss.png
run timedrun report race --csv values.csv
grep -q train_loss values.csv
