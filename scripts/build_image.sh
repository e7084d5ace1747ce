#!/usr/bin/env bash
# Build an image with docker, podman or buildah, whichever works: timedrun:<version> unless --tag or --target is given.
# Arguments go to the build, such as --build-arg BASE=docker.io/library/python:3.11-slim-bookworm.
set -euo pipefail
unset CDPATH; cd "$(dirname "$0")/.."
version="$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)"
commit="$(git rev-parse --verify HEAD 2>/dev/null || echo unknown)"
dirty=false; if [ -n "$(git status --porcelain 2>&1)" ]; then dirty=true; fi
case " $* " in *" -t"*|*" --tag"*|*" --target"*) ;; *) set -- --tag "timedrun:$version" "$@" ;; esac
for engine in docker podman buildah; do
    "$engine" info >/dev/null 2>&1 || continue
    exec "$engine" build --build-arg "COMMIT=$commit" --build-arg "DIRTY=$dirty" --build-arg "VERSION=$version" "$@" .
done
echo "no working docker, podman or buildah ('docker info' shows why); nothing was built" >&2
exit 1
