# `make` alone lists the targets. A first run builds the control plane of tests and demo
# (about 10 minutes) and all crates (about 10 more); both are kept.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test soak bench testbed lint fmt generate

# Options for the program behind demo, soak, bench and testbed: make testbed ARGS="--nodes 50".
ARGS ?=

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo '  Options of a program go into ARGS: make testbed ARGS="--nodes 50"'

setup: ## Check the tools and build the control plane, once
	@scripts/setup.sh

demo: setup ## Show Warden at work on a simulated cluster
	@cargo build --workspace --bins
	@cargo run --quiet --bin demo -- $(ARGS)

test: setup ## Run every deterministic test
	@cargo test --workspace
	@cargo run --quiet --package xtask -- check

soak: setup ## Run the long tests: crash runs, chaos, long fuzzing, large fleets
	@cargo build --workspace --bins
	@cargo run --quiet --bin soak -- $(ARGS)

bench: setup ## Measure the released programs
	@cargo build --release --workspace --bins
	@cargo run --quiet --release --bin bench -- $(ARGS)

testbed: setup ## Run a control plane with simulated nodes until Ctrl-C
	@cargo run --quiet --package testbed -- $(ARGS)

lint: setup ## Check format, lints and documentation
	@cargo fmt --all --check
	@cargo clippy --workspace --all-targets -- -D warnings
	@RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --quiet

fmt: ## Format the code
	@cargo fmt --all

generate: ## Write the generated files again
	@cargo run --quiet --package xtask -- generate
