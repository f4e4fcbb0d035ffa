#!/bin/sh
# Makes sure that Spark finds a Java: the machine's own where that is 17 or later, else one installed into .venv.
set -eu
cd "$(dirname "$0")/.."
java() { .venv/bin/python -W ignore::RuntimeWarning:runpy -m millpond.spark.java; }
if java >/dev/null 2>&1; then
    exit 0
fi
echo "No Java 17 or later found (JAVA_HOME, PATH): installing one into .venv, for this project only …" >&2
install() {
    if [ -x .tools/bin/uv ]; then
        UV_SYSTEM_CERTS=true UV_NO_PROGRESS=true .tools/bin/uv pip install --quiet --python .venv/bin/python \
            --no-deps --require-hashes -r requirements-java.lock
    else
        .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-java.lock
    fi
}
if ! said=$(install 2>&1); then
    echo "No Java could be installed ($(printf '%s' "$said" | head -n 1)). Install Java 17 or later (Debian, Ubuntu: apt install default-jre-headless), or set JAVA_HOME." >&2
    exit 6
fi
# Says in one line what is missing where even that one doesn't run.
java >/dev/null
