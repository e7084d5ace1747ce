#!/usr/bin/env bash
# Builds the image timedrun:<version> with docker, podman or buildah, the first that works here; arguments go to its build,
# such as --build-arg BASE=docker.io/library/python:3.11-slim-bookworm (Dockerfile says which there are).
set -euo pipefail
cd "$(dirname "$0")/.."
version="$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)"
commit="$(git rev-parse --verify HEAD 2>/dev/null || echo unknown)"
dirty=false; if [ -n "$(git status --porcelain 2>&1)" ]; then dirty=true; fi
for engine in docker podman buildah; do
    "$engine" info >/dev/null 2>&1 || continue
    exec "$engine" build --build-arg "COMMIT=$commit" --build-arg "DIRTY=$dirty" --build-arg "VERSION=$version" \
        --tag "timedrun:$version" "$@" .
done
echo "no docker, podman or buildah works here ('docker info' says why); nothing was built" >&2
exit 1
