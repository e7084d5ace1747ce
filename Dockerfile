# Images of timedrun; scripts/build_image.sh builds them.
#   GPU, the default: NVIDIA's PyTorch image. The build fails if its torch, apex or flash-attn would be replaced.
#   CPU: --build-arg BASE=docker.io/library/python:3.11-slim-bookworm
#        --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu    (without it: CUDA's libraries, several GB)
#   Targets: runtime, the default, and test, which adds git and the development tools that scripts/test.sh needs.
ARG BASE=nvcr.io/nvidia/pytorch:26.07-py3

# FFCV is published as source only. Compilers and headers stay in this stage; the wheel is kept, with the names of the
# packages that provide its linked libraries (Debian and Ubuntu name them differently).
FROM ${BASE} AS ffcv
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        binutils g++ libopencv-dev libturbojpeg0-dev pkg-config python3-dev \
    && rm -rf /var/lib/apt/lists/*
COPY constraints.txt /tmp/
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels "$(grep '^ffcv==' /tmp/constraints.txt)" \
    && python -m zipfile -e /wheels/ffcv-*.whl /tmp/ffcv \
    && find /tmp/ffcv -name '*.so' -exec objdump -p {} + > /tmp/linked \
    && awk '/NEEDED/ {print "*/" $2}' /tmp/linked > /tmp/libraries \
    && { xargs -a /tmp/libraries -n 1 dpkg -S > /tmp/found || true; } \
    && awk -F: '!seen[$1]++ {print $1}' /tmp/found > /wheels/packages

FROM ${BASE} AS runtime
ARG EXTRAS=train,digits,vision,language,report,explorer,gpu
ARG TORCH_INDEX=
ARG USER_ID=1000

COPY --from=ffcv /wheels /tmp/wheels
# The base may already use the user id.
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive xargs -a /tmp/wheels/packages \
        apt-get install -y --no-install-recommends --no-upgrade \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/* \
    && if taken="$(getent passwd "${USER_ID}")"; then userdel "${taken%%:*}"; fi \
    && useradd --create-home --user-group --uid "${USER_ID}" --shell /bin/bash timedrun \
    && install -d -m 1777 -o timedrun -g timedrun /results \
    && install -d /data

# Packages of the base keep their versions unless a requirement forbids it, and those bound to its CUDA or numpy always do:
# both are constraints for pip, after the base's own (PIP_CONSTRAINT), and stay in the image for the test target. Versions
# and files are compared afterwards.
WORKDIR /timedrun
COPY pyproject.toml constraints.txt ./
# hadolint ignore=DL3013,SC2086,SC2185
RUN kept='(apex|cuda-.*|flash[-_]attn.*|llvmlite|numba|numpy|nvidia-.*|torch.*|transformer[-_]engine.*|triton.*)' \
    && python -m pip list --format=freeze > /tmp/base \
    && { grep -iE "^${kept}==" /tmp/base || true; } > /tmp/kept \
    && python -c "import os, sys; print(*filter(os.path.isdir, sys.path), sep='\0', end='\0')" > /tmp/path \
    && find -files0-from /tmp/path -maxdepth 2 -regextype posix-extended -iregex ".*/${kept}-[^/]*\.dist-info/RECORD" \
        -exec sha256sum {} + > /tmp/records \
    && awk -F '[^A-Za-z0-9._-]' '{name = tolower($1); gsub(/[-_.]+/, "-", name)} \
        FILENAME != "constraints.txt" {there[name]; next} !(name in there)' \
        /tmp/base ${PIP_CONSTRAINT:-} constraints.txt > /tmp/constraints \
    && cat /tmp/kept >> /tmp/constraints \
    && python -c "import sys, tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
print(*p['dependencies'], *(r for e in sys.argv[1].split(',') for r in p['optional-dependencies'][e]), sep='\n')" \
        "${EXTRAS}" > /tmp/requirements \
    && printf '%s\n' assertpy fastargs numba pytorch-pfn-extras terminaltables tqdm >> /tmp/requirements \
    && { python -c "import cv2" 2> /tmp/no_opencv || echo opencv-python-headless >> /tmp/requirements; } \
    && python -m pip install --no-cache-dir --constraint /tmp/constraints --requirement /tmp/requirements \
        ${TORCH_INDEX:+--extra-index-url "${TORCH_INDEX}"} \
    && python -m pip install --no-cache-dir --no-deps /tmp/wheels/ffcv-*.whl \
    && python -m pip list --format=freeze > /tmp/installed \
    && if grep -Fxvf /tmp/installed /tmp/kept; then echo "pip replaced these packages of the base image; build failed" >&2; exit 1; fi \
    && if [ -s /tmp/records ]; then sha256sum --check --quiet /tmp/records; fi \
    && install -m 644 /tmp/constraints /usr/local/share/timedrun-constraints.txt \
    && python -c "import torch, ffcv.libffcv; print('torch', torch.__version__, torch.__file__)" \
    && rm -rf /tmp/* ~/.cache

# The source is owned by root, so that a run cannot change the code that its results name.
COPY . .
RUN chmod -R a+rX,go-w . \
    && python -m pip install --no-cache-dir --no-deps --editable . \
    && python -m compileall -q benchmarks image_classification image_segmentation language_model logging referee timedrun \
    && ln -s /results runs \
    && rm -rf /tmp/* ~/.cache

# Caches in /tmp, the only place besides /results that must be writable (docker run --read-only --tmpfs /tmp:exec).
ENV MPLCONFIGDIR=/tmp/matplotlib \
    NUMBA_CACHE_DIR=/tmp/numba \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    TIMEDRUN_INSTALLED=1 \
    USER=timedrun \
    XDG_CACHE_HOME=/tmp/cache

# An image has no .git: timedrun/runner/provenance/source.py reads the commit from this file.
ARG COMMIT=unknown
ARG DIRTY=true
ARG VERSION=unknown
RUN printf '{"commit": "%s", "dirty": %s}\n' "${COMMIT}" "${DIRTY}" > commit.json
LABEL org.opencontainers.image.title="timedrun" \
      org.opencontainers.image.description="MLPerf-style time-to-train harness" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${COMMIT}" \
      org.opencontainers.image.version="${VERSION}" \
      timedrun.dirty="${DIRTY}"

USER ${USER_ID}
# Start with a shell: NVIDIA's images adapt the library path to the driver in BASH_ENV. exec passes signals to the command.
# NVIDIA's own entry point would print a banner into --json output.
ENTRYPOINT ["/bin/bash", "-c", "exec \"$@\"", "bash"]
CMD ["timedrun", "--help"]

FROM runtime AS test
ARG USER_ID=1000
# hadolint ignore=DL3002
USER 0
# git: the tests create repositories.
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends --no-upgrade git \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/* \
    && python -m pip install --no-cache-dir --constraint /usr/local/share/timedrun-constraints.txt --editable '.[dev]' \
    && rm -rf /tmp/* ~/.cache
ENV HYPOTHESIS_STORAGE_DIRECTORY=/tmp/hypothesis \
    MYPY_CACHE_DIR=/tmp/mypy \
    PYTEST_ADDOPTS="-o cache_dir=/tmp/pytest" \
    RUFF_CACHE_DIR=/tmp/ruff
USER ${USER_ID}

# Built without --target.
FROM runtime
