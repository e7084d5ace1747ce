#!/usr/bin/env bash
# The first hour of someone who doubts a reported time: recompute it from its logs. FOLDER: an empty one.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/walk.bash"
cd "$1"
claims="$repository/results/published/mosaicml.json"

fails 1 timedrun reproduce "$repository"/results/digits_demo --claims "$claims"
sees 'not shown: no claim'
fails 2 timedrun reproduce nowhere --claims "$claims"
sees 'nowhere does not exist'
fails 2 timedrun reproduce . --claims "$claims"
sees 'holds no result'

run timedrun package "$repository"/results/digits_demo/digits_methods --out package
run timedrun reproduce package
sees 'true: 2 of 2 claimed values'

# One digit of one log, changed by a millisecond.
log=$(echo package/unaffiliated/results/*/resnet/result_1.txt)
sed -i '/"run_stop"/s/"time_ms": \([0-9]*\)\([0-9]\),/"time_ms": \18\2,/' "$log"
fails 1 timedrun reproduce package
sees "differs from the package's manifest"
head -c 900 "$log" >cut && mv cut "$log"
fails 1 timedrun reproduce package
sees "differs from the package's manifest"
