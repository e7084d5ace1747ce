#!/usr/bin/env bash
# The first hour of a submitter: from the questions about the machine to a checked package. FOLDER: an empty one.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/walk.bash"
cd "$1"
digits=(image_classification methods --threads 1 --submission.organization Acme --submission.platform box --name digits_box)

run timedrun doctor --system --answers answers.json
sees 'Required by MLPerf.s rules, unknown' && sees -- '--submission.organization'
sed -i 's/": ""/": "answered"/' answers.json
fails 1 timedrun preflight "${digits[@]}" --answers answers.json --precision fp16 --device cpu
sees 'error .*fp16' && sees 'nothing was run'

# Two published configs of five runs each in one package, and the checks of it.
sets=("$repository"/results/digits_demo/digits_{baseline,methods})
run timedrun score "${sets[@]}"
sees '5 of 5' && sees 'unverified, demonstration'
run timedrun package "${sets[@]}" --answers answers.json --out package
sees "MLCommons' check: pass" && sees 'strict check: pass'
run "$repository"/scripts/check_compliance.sh package --quiet
sees 'strict: 10 logs pass, 2 sets pass, 1 package passes' && sees PASS
run timedrun reproduce package
sees 'true: 4 of 4 claimed values'

# What is changed in a package afterwards is found.
log=$(echo package/unaffiliated/results/*digits_methods/resnet/result_1.txt)
sed -i '/"run_stop"/s/"time_ms": \([0-9]*\)[0-9][0-9][0-9],/"time_ms": \1000,/' "$log"
rm package/unaffiliated/systems/*digits_baseline.json
fails 1 timedrun check package --no-official
sees 'the file was changed after packaging' && sees 'digits_baseline.json: listed but missing'
fails 1 timedrun reproduce package
sees '2 files differ from the package.s manifest'
