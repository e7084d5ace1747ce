# Sourced by the scripts of this folder: commands that are shown, and what must be seen of them.
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
say() { printf '\n$ %s\n' "$*"; }
run() { # a command that must succeed; its output is also in `seen`
    say "$*"
    "$@" 2>&1 | tee seen
}
fails() { # CODE COMMAND...: a command that must end with CODE
    local code=0
    say "${*:2}"
    "${@:2}" >seen 2>&1 || code=$?
    cat seen
    [ "$code" = "$1" ] || { echo "expected exit code $1, got $code"; exit 1; }
}
sees() { grep -q -e "$1" seen || { echo "expected: $1"; exit 1; }; }
