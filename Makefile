# Everything that is downloaded or compiled lands below CACHE; the tree stays clean. Needs a Rust toolchain (1.95) and,
# on Debian, root for the packages that are missing (a C compiler, PostgreSQL's libraries): tests/env/install.sh.
CACHE := $(or $(HOLDFAST_CACHE),$(HOME)/.cache/holdfast)
export HOLDFAST_CACHE := $(CACHE)
export CARGO_TARGET_DIR ?= $(CACHE)/target

RELEASE := $(CARGO_TARGET_DIR)/release
# The program that the tests run: it can be killed at any step. A copy, as other builds replace the original. It is built
# together with the tests and as they are, so that nothing is compiled twice.
TESTED := $(CARGO_TARGET_DIR)/tested/holdfast-agent
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help build demo test lint bench soak tools tools-demo tested clean-cache

help: ## Says what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: tools-demo ## Builds the agent (release)
	@cargo build --locked --release -p holdfast-agent
	@echo "$(RELEASE)/holdfast-agent"

demo: build ## Backs up, damages, restores and drills a real server, and says what was proven (3 minutes)
	@HOLDFAST_AGENT=$(RELEASE)/holdfast-agent demo/run.sh </dev/null

test: tools lint tested ## Lints, then runs every test against real servers of every version
	@python3 tests/checks/dependencies_test.py
	@python3 tests/bench/report_test.py
	@HOLDFAST_AGENT=$(TESTED) tests/format/test.sh
	@HOLDFAST_AGENT=$(TESTED) cargo test --locked --release --workspace --features holdfast-agent/fault-injection --no-fail-fast </dev/null

lint: tools ## Checks format, clippy, dependencies and licences
	@tests/checks/components.sh rustfmt clippy
	@cargo fmt --check
	@cargo clippy --locked --release --workspace --all-targets -- -D warnings
	@tests/checks/dependencies.sh

bench: tools ## Measures against pgBackRest, pg_basebackup and restic; writes tests/results/bench.md (25 minutes)
	@TOOL_CACHE=$(CACHE)/tools PGBIN=$${PGBIN:-$$(readlink -f $(CACHE)/tools/postgresql/15)/bin} OUT=$${OUT:-tests/results/bench.md} tests/bench/bench.sh

soak: tools tested ## Runs the long tests: load, kills and restores for many minutes
	@HOLDFAST_AGENT=$(TESTED) cargo test --locked --release --workspace --features holdfast-agent/fault-injection -- --ignored soak_ </dev/null

tools: ## Installs what the tests need: compiler, PostgreSQL 15 to 18, MinIO
	@tests/env/install.sh

tools-demo:
	@tests/env/install.sh packages postgresql-15

tested: tools
	@cargo build --locked --release --workspace --bins --tests --features holdfast-agent/fault-injection
	@install -D $(RELEASE)/holdfast-agent $(TESTED)

clean-cache: ## Removes everything that was downloaded or compiled
	rm -rf -- "$(CACHE)" "$(CARGO_TARGET_DIR)" "$${HOLDFAST_TREES:-/var/lib/holdfast-tests}"
