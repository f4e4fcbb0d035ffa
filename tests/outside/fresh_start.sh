#!/usr/bin/env bash
# What a stranger does: clone, `make demo`, on a machine without Java and with an empty home folder. Then the reader's side:
# an install without PySpark that asks the pond which the demo has left. Ends with one line: how many checks passed and failed.
set -uo pipefail
cd "$(dirname "$0")/../.."
repository=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rows=12000 # of the demo's stream
passed=0
failed=0

check() {
    local promise=$1
    shift
    if "$@" >"$work/output" 2>&1; then
        passed=$((passed + 1))
        echo "ok: $promise"
    else
        failed=$((failed + 1))
        echo "FAILED: $promise"
        tail -n 60 "$work/output" | sed 's/^/    /'
    fi
}

# Every program of PATH but Java's, first come first served.
mkdir "$work/bin" "$work/home"
IFS=: read -ra folders <<<"$PATH"
for folder in "${folders[@]}"; do
    for program in "$folder"/*; do
        name=${program##*/}
        case $name in java | javac | jshell | jar | java-*) continue ;; esac
        if [ -x "$program" ] && [ ! -d "$program" ] && [ ! -e "$work/bin/$name" ]; then
            ln -s "$program" "$work/bin/$name"
        fi
    done
done
# What the set-up of this checkout downloaded and built isn't downloaded and built again.
cache=$(.tools/bin/uv cache dir 2>/dev/null || echo "$work/home/cache")
stranger() {
    env -u JAVA_HOME -u JDK_HOME -u SPARK_HOME -u VIRTUAL_ENV -u PYTHONPATH -u MILLPOND_HOME -u XDG_CACHE_HOME -u MAKEFLAGS \
        -u MAKELEVEL -u MFLAGS -u PYTHON HOME="$work/home" PATH="$work/bin" UV_CACHE_DIR="$cache" "$@" </dev/null
}
without_java() { ! stranger sh -c 'command -v java'; }
no_process_is_left() {
    # The list is made before grep starts: otherwise grep would find itself, by the folder it was told to look for.
    for _ in $(seq 50); do
        processes=(/proc/[0-9]*/cmdline)
        grep -lsF "$work" "${processes[@]}" >"$work/left" || return 0
        sleep 0.2
    done
    xargs -a "$work/left" -n 1 cat 2>/dev/null | tr '\0' ' '
    return 1
}
each_line_is_counted_once() {
    # Each page's hits of each day, of all pages, less the lines that are no requests: the generated stream never changes.
    "$work/reader/bin/millpond" scan "$work/pond" page_views --where 'resolution = 1 day' --limit 1000 --json | "$work/reader/bin/python" -c '
import json, sys
hits = sum(json.loads(line)["hits"] for line in sys.stdin)
bad = len(open(sys.argv[1]).read().split())
sys.exit(f"{hits} hits and {bad} bad lines aren’t {sys.argv[2]}" if hits + bad != int(sys.argv[2]) else 0)' "$work/bad" "$rows"
}
bad_lines_are_listed() {
    "$work/reader/bin/millpond" scan "$work/pond" bad_lines --limit 1000 --json | sed 's/.*/x/' >"$work/bad" && [ -s "$work/bad" ]
}

check 'a clone can be made' git clone -q "$repository" "$work/millpond"
check 'no Java is in sight' without_java
check 'make demo works at once, and ends' \
    stranger timeout -k 10 1200 make -C "$work/millpond" demo ARGS="--once --rows $rows --pond $work/pond"
cp "$work/output" "$work/demo"
check 'its answers name their batches' grep -Eq 'hits by .* visitors \(batch [0-9]+' "$work/demo"
check 'it says that all was read' grep -q 'All input has been read' "$work/demo"
check 'it leaves no process' no_process_is_left
check 'it leaves nothing in the checkout' test -z "$(git -C "$work/millpond" status --porcelain)"

reader() {
    python=$(cat "$work/millpond/.venv/pyvenv.cfg" | sed -n 's/^executable = //p')
    "$python" -m venv "$work/reader" &&
        "$work/reader/bin/python" -m pip install -q --disable-pip-version-check --require-hashes --no-deps \
            -r "$work/millpond/requirements-build.lock" &&
        "$work/reader/bin/python" -m pip install -q --disable-pip-version-check --no-build-isolation \
            "$work/millpond" -c <(sed -n 's/^\([a-z][^ ]*==[^ ]*\).*/\1/p' "$work/millpond/requirements.lock" | grep -v '^numpy==')
}
check 'the reader installs without PySpark' reader
check 'it has no PySpark' sh -c "! '$work/reader/bin/python' -c 'import pyspark'"
check 'and imports' stranger "$work/reader/bin/python" -c 'import millpond, sys; assert "pyspark" not in sys.modules'
check 'its demo says what to install' \
    sh -c "'$work/reader/bin/millpond' demo 2>&1 | grep -q 'PYSPARK_MISSING.*pip install'"
check 'it lists the tables' stranger "$work/reader/bin/millpond" tables "$work/pond"
check 'it answers for one page' stranger "$work/reader/bin/millpond" total "$work/pond" page_views page=/news/0.html
check 'it lists the bad lines' bad_lines_are_listed
check 'every line is counted once' each_line_is_counted_once

echo "outside: $passed passed, $failed failed"
[ "$failed" -eq 0 ]
