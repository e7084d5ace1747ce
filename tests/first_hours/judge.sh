#!/usr/bin/env bash
# The first hour of someone who must know whether a method is real: sides, a control, a stop, figures. FOLDER: an empty one.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/walk.bash"
cd "$1"

# What cannot run is refused before the first run.
fails 2 timedrun race image_classification baseline 'baseline+emma'
sees 'emma' && sees 'ema'
fails 2 timedrun race image_classification baseline 'baseline+ema(half_live=8)'
sees 'half_live' && sees 'half_life'
fails 1 timedrun race image_classification baseline methods --b.precision fp16 --b.device cpu
sees 'fp16'
[ ! -e runs ]

# A method added by name against a file, with a changed setting; a pair is too few for a verdict.
timedrun show image_classification methods --json >mine.json
run timedrun race image_classification --runs 1 --threads 1 --results race 'baseline+ema(half_life=8)' \
    mine.json-blurpool --a.optimizer.peak-lr 0.5 --a.optimizer.nesterov false
sees 'too few pairs (1 < 3)' && sees 'run 2/2' && sees 'strict: 2 of 2 logs pass, official: 2 of 2'
sees 'skipped: MLPerf requires 5 runs per set, this race has 1 (use --runs 5)'
mapfile -t sets < <(ls -d race/*/)
run timedrun compare "${sets[0]}" "${sets[1]}"
sees 'interleaved'

# A stop loses nothing: the finished runs are reported, and the race goes on.
control=(timedrun race image_classification methods methods --runs 1 --threads 1 --results control)
say "${control[@]}"
set -m # otherwise bash starts it with SIGINT ignored
"${control[@]}" >seen 2>&1 &
until grep -qs 'run 2/2' seen; do kill -0 $!; sleep 0.05; done
kill -INT $!
code=0 && wait $! || code=$?
cat seen
[ $code = 130 ] && sees 'timedrun race image_classification --resume control'
run timedrun race image_classification --resume control
sees '1 of 1' && sees 'again'

# A report that fails in one step keeps the others.
rm control/quality_over_time.png && mkdir control/quality_over_time.png
fails 1 timedrun race --report control
sees 'figure failed' && sees '1 of 1' && sees 'strict: 2 of 2 logs pass'

run timedrun plot race --what loss --out loss.png
run timedrun export race --csv values.csv
grep -q train_loss values.csv
