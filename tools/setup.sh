#!/bin/sh
# Sets up .venv: the locked dependencies, everything checked by hash, and Millpond itself from this folder.
# 1. Find a Python of 3.11 to 3.14 (PYTHON names another).  2. Get uv into .tools; without it pip does the same, slower.
# 3. Install what builds packages, then everything else.  4. Millpond, editable.
set -eu
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*" >&2; }
die() {
    say "$*"
    exit 6
}
fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' >/dev/null 2>&1; }

# 1
if [ -n "${PYTHON:-}" ]; then
    fits "$PYTHON" || die "PYTHON=$PYTHON isn't a Python of 3.11 to 3.14."
    python=$PYTHON
else
    python=
    for name in python3 python3.14 python3.13 python3.12 python3.11 python; do
        if fits "$name"; then
            python=$name
            break
        fi
    done
    [ -n "$python" ] || die "No Python of 3.11 to 3.14 found. Install one (Debian, Ubuntu: apt install python3 python3-venv), or name it: make PYTHON=…"
fi
left=$(df -Pk . | awk 'NR == 2 { print int($4 / 1024) }')
[ "$left" -ge 2500 ] || die "The disk of $PWD has $left MiB left, and .venv needs 2,500."
"$python" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
    die "This Python can't make virtual environments. Install its venv module (Debian, Ubuntu: apt install python3-venv)."

# 2
say "Setting up .venv with $("$python" -V) …"
uv=.tools/bin/uv
if ! "$uv" --version >/dev/null 2>&1 || ! cmp -s requirements-uv.lock .tools/installed; then
    rm -rf .tools
    if "$python" -m venv .tools && .tools/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
        --require-hashes --only-binary :all: -r requirements-uv.lock && "$uv" --version >/dev/null; then
        cp requirements-uv.lock .tools/installed
    else
        say "uv can't be had here; going on with pip, which takes longer."
        rm -rf .tools
    fi
fi

# 3
if ! fits .venv/bin/python || [ "$(.venv/bin/python -V)" != "$("$python" -V)" ] || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    rm -rf .venv
    "$python" -m venv .venv
fi
if [ -x "$uv" ]; then
    # A machine's own certificates, as pip is told them too.
    export UV_SYSTEM_CERTS=true UV_PYTHON_DOWNLOADS=never UV_NO_PROGRESS=true
    # Compiled once here, and not by five Python workers at once in the first seconds of the first job.
    install() { "$uv" pip install --quiet --compile-bytecode --python .venv/bin/python "$@"; }
else
    install() { .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@"; }
fi
install --no-deps --require-hashes -r requirements-build.lock
# PySpark comes as source; it is built with the locked setuptools, not with whatever is newest.
install --no-deps --require-hashes --no-build-isolation -r requirements.lock

# 4
if [ -z "${CC:-}" ] && ! command -v cc >/dev/null && ! command -v gcc >/dev/null && ! command -v clang >/dev/null; then
    # Millpond's compiled library can be done without: it makes reading large states faster.
    install --no-deps --require-hashes --only-binary :all: -r requirements-zig.lock || say "No C compiler: going on without the compiled library."
fi
install --no-deps --no-build-isolation --editable .
touch .venv/installed
