# Everything a fresh Linux machine needs: make, git and a Python of 3.11 to 3.14. The first call sets up .venv.

PYTHON ?=
# More options for pytest: make fast PYTEST="-k sst --write-durations"
PYTEST ?=
# What the demo is asked: by default it ends by itself after a minute. All of it: make demo ARGS="--log access.log --once"
ARGS ?= --seconds 60
BIN := .venv/bin
READY := .venv/installed

# Some images forbid Python to keep what it has compiled.  The tests start hundreds of processes, each of which would compile all again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-all machine lint types style docs fast spark faults long long-fast long-spark long-faults every kills outage soak chaos savepoints random fuzz java clean
.DEFAULT_GOAL := help

help: ## This list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

$(READY): requirements.lock requirements-zig.lock requirements-build.lock requirements-uv.lock pyproject.toml tools/setup.sh hatch_build.py $(wildcard src/millpond/native/c/*.c src/millpond/native/c/*.h src/millpond/native/*.py)
	@PYTHON='$(PYTHON)' sh tools/setup.sh

java: $(READY)
	@sh tools/java.sh

demo: java ## Run the main job and show queries being answered while it runs
	@$(BIN)/millpond demo $(ARGS)

test: java machine lint fast spark faults ## All kinds of tests, small: about fifteen minutes on two cores

test-all: test long ## Those, and the long ones: about three hours

# Says in one line what the tests would miss on this machine, before any of them runs.
machine: $(READY)
	@PYTHONPATH=tests $(BIN)/python -m suite.machine

lint: $(READY) ## Style, types, layers and the manual
	@$(MAKE) --no-print-directory -j 3 types docs style

types: $(READY)
	$(BIN)/mypy

style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mdformat --check README.md ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md benchmarks/README.md tests/README.md tests/golden/VERSIONS.md docs

docs: $(READY) ## The manual as a site, in build/site; a dead link fails it
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# A group of tests: its name, its markers, its budget in minutes, its processes, and more options.
# pytest ends with 5 if a group has no test yet.
group = $(BIN)/python -m pytest -q -n $(4) --dist worksteal --group '$(1)' -m '$(2)' --budget $(3) $(5) $(PYTEST) || [ $$? -eq 5 ]

# A test that goes on for so many seconds hangs: its process writes where it stands, and ends; the run goes on without it.
hangs = -o faulthandler_timeout=$(1) --timeout-method thread --timeout $$(($(1) + 10))
# A group of long tests also writes how it ended, if it is whole.  With a space, the file would be taken for one of tests once it is there.
WRITTEN := $(if $(PYTEST),,--result=benchmarks/results/long.json)

# Many of its tests wait for servers, so that four processes fill two cores.
fast: machine ## Tests that need no Spark
	$(call group,fast,not spark and not faults and not long,6,4,$(call hangs,600))

spark: java machine ## Tests against live Spark jobs
	$(call group,spark,spark and not faults and not long,5,2,$(call hangs,600))

faults: java machine ## Tests that kill processes
	$(call group,faults,faults and not long,2,2,$(call hangs,600))

long: java long-fast long-faults long-spark ## The long tests: every cell both ways, the soak, 150 random queries, sanitizers

long-fast: machine
	@export MILLPOND_LONG=1; $(call group,long-fast,(long or hypothesis) and not spark and not faults,40,3,$(call hangs,3600) $(WRITTEN))

long-spark: java machine
	$(call group,long-spark,long and spark and not faults,100,2,$(call hangs,3600) $(WRITTEN))

long-faults: java machine
	$(call group,long-faults,long and faults,20,2,$(call hangs,3600) $(WRITTEN))

every: java ## All cases with Spark of which the long tests take some: hours
	export MILLPOND_LONG=1 MILLPOND_EVERY=1; $(BIN)/python -m pytest -q -n 2 --dist worksteal -m 'spark and not faults' tests/spark tests/random_queries tests/benchmarks

soak: ARGS = --kills 200
soak: java ## Kill, pause and replace everything: make soak ARGS="--kills 1000 --seed 7"
	@PYTHONPATH=tests $(BIN)/python -m soak $(ARGS) --result benchmarks/results/soak.json

chaos: ARGS = --kills 100
chaos: java ## Kafka, S3, a cluster, shards, router, sender, savepoints and console in one storm: make chaos ARGS="--kills 1000 --seed 7"
	@PYTHONPATH=tests $(BIN)/python -m chaos $(ARGS) --result benchmarks/results/chaos.json

kills: ARGS = --kills 60
kills: java ## Kill jobs of every kind, and recompute them: make kills ARGS="--kills 200 --seed 7"
	@PYTHONPATH=tests $(BIN)/python -m faults $(ARGS) --result benchmarks/results/kills.json

outage: ARGS = --seconds 3600
outage: java ## Senders whose targets are gone for an hour: make outage ARGS="--seconds 60"
	@PYTHONPATH=tests $(BIN)/python -m sending.outage $(ARGS) --result benchmarks/results/outage.json

savepoints: ARGS = --count 200
savepoints: java ## Savepoints in a row of jobs at full speed: make savepoints ARGS="--count 1000"
	@PYTHONPATH=tests $(BIN)/python -m in_a_row $(ARGS) --result benchmarks/results/in_a_row.json

random: ARGS = --count 400
random: java ## Random queries held against Spark: make random ARGS="--count 1000 --seed 7"
	@PYTHONPATH=tests $(BIN)/python -m random_queries $(ARGS) --result benchmarks/results/random_queries.json

fuzz: ARGS = --mutations 300000 --seed 1
fuzz: $(READY) ## Damage files and read them, the compiled library under sanitizers: make fuzz ARGS="--mutations 1000000 --seed 7"
	@$(BIN)/python tests/fuzz/fuzz.py --sanitized $(ARGS)

clean: ## Remove what the targets above have made in this folder
	rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build/site build/golden spark-warehouse src/millpond/native/libmillpond.so
