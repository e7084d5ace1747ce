#!/usr/bin/env bash
# A submitter stops a run and resumes it. FOLDER: an empty one.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/walk.bash"
cd "$1"

# Ctrl-C and --resume, in a recipe that takes some seconds.
long=(timedrun run image_classification baseline_2022 --threads 1 --evaluation.first 20 --evaluation.target 0.9)
say "${long[@]}"
set -m # otherwise bash starts it with SIGINT ignored
"${long[@]}" --results long >seen 2>&1 &
until grep -qs run_start long/result_0.txt; do kill -0 $!; sleep 0.02; done
kill -INT $!
code=0 && wait $! || code=$?
cat seen
[ $code = 75 ] && sees 'resume with the same command and --resume'
run "${long[@]}" --results long --resume
sees 'target reached in'
