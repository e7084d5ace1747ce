#!/usr/bin/env bash
# Race the base of a pull request against its head, and write report.md: BASE HEAD [options of `timedrun race`] -- COMMAND
# Variables: TIMEDRUN, its program; RESULTS, a new folder; FAIL_ON: "discard" (default), "discard inconclusive", "none".
set -euo pipefail
results="${RESULTS:-race}" fail_on="${FAIL_ON:-discard}"
[[ "$fail_on" =~ ^(none|((keep|discard|inconclusive)( |$))+)$ ]] || { echo "FAIL_ON=$fail_on: no decision; nothing was run" >&2; exit 2; }
base="$(git merge-base "$1" "$2")" && head="$(git rev-parse --short "$2")" || { echo "$1 and $2 have no common commit here, as in a" \
    "shallow clone: fetch the whole history (GitHub: fetch-depth: 0; GitLab: GIT_DEPTH: 0); nothing was run" >&2; exit 2; }
code=0; "${TIMEDRUN:-timedrun}" race command --at "$(git rev-parse --short "$base")" --at "$head" --results "$results" "${@:3}" || code=$?
[ "$code" != 2 ] && [ -f "$results/race.json" ] || exit "$code"
"${TIMEDRUN:-timedrun}" report "$results" --markdown --out "$results/report.md" || [ -f "$results/report.md" ]  # it is 1 if a log fails
tee -a "${GITHUB_STEP_SUMMARY:-/dev/null}" < "$results/report.md"
decision="$(sed -n 's/^ *"decision": "\(.*\)",$/\1/p' "$results/race.json")"; printf '%s\n' "decision=$decision" "folder=$results" >> "${GITHUB_OUTPUT:-/dev/null}"
case "$code $decision" in "0 keep"|"1 discard"|"4 inconclusive") ;; *) exit "$((code ? code : 1))" ;; esac
[[ " $fail_on " != *" $decision "* ]]
