#!/usr/bin/env bash
# A submitter makes a set of runs and learns what it lacks. FOLDER: an empty one.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/walk.bash"
cd "$1"
digits=(image_classification methods --threads 1 --submission.organization Acme --submission.platform box --name digits_box)
set=runs/image_classification/digits_box

# The runs of a folder are one set; a seed that is taken does not get into it.
run timedrun run "${digits[@]}" --runs 2
sees '2 of 2 runs reached the target'
fails 2 timedrun run "${digits[@]}" --seed 2
sees 'already has seed 2' && sees 'the next free one is 3'
[ "$(ls $set | grep -c result_)" = 2 ]

run timedrun check $set
sees 'logs: 2 pass, 0 fail' && sees 'official pass'
fails 1 timedrun score $set
sees 'Acme box resnet' && sees 'it has 2 runs, and the olympic mean needs at least 3'
fails 2 timedrun forecast $set
sees 'no reference convergence exists'
run timedrun forecast bert --batch-size 448
sees 'passes, unscaled'
