#!/usr/bin/env bash
# Someone who must know whether a method is real stops a control and goes on. FOLDER: an empty one.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/walk.bash"
cd "$1"

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
