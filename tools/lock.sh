#!/bin/sh
# Writes the lock files anew, with hashes and without the address of any package index. Needs `make .venv/installed`.
# Pass --upgrade to take newer versions.
set -eu
cd "$(dirname "$0")/.."
lock() {
    target=$1
    shift
    .tools/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
        --no-header --no-annotate --output-file "$target" "$@"
    if grep -n '://' "$target"; then
        echo "$target names an address" >&2
        exit 1
    fi
}
lock requirements.lock pyproject.toml tools/build.in --all-extras --group dev "$@"
lock requirements-build.lock tools/build.in --constraint requirements.lock "$@"
lock requirements-uv.lock tools/uv.in "$@"
lock requirements-zig.lock tools/zig.in "$@"
lock requirements-java.lock tools/java.in "$@"
