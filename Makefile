# `make` alone lists the targets. A first run builds the control plane of tests and demo
# (about 10 minutes on 2 cores) and all crates (5 to 10 more); both are kept.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test soak bench testbed fuzz lint audit fmt generate

# Of a test that waits in a runtime a backtrace tells nothing, and hides its words where only the end of
# the output is kept.
export RUST_BACKTRACE := 0

# Options for the program behind demo, soak, bench and testbed: make testbed ARGS="--nodes 50".
ARGS ?=
# Where cargo puts what it builds.
BUILT := $(or $(CARGO_TARGET_DIR),target)
# Seconds for each fuzz target of make fuzz and make soak.
FUZZ_SECONDS ?= 600

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo '  KEEP=1 make demo leaves the demo running until Ctrl-C, to look around in it'
	@echo '  Options of a program go into ARGS: make testbed ARGS="--nodes 50"'
	@echo '  make soak keeps its results in bench/results. It does 60 crash runs of the whole loop; before'
	@echo '  work is called done: make soak ARGS="--runs 1000". A part of it: make soak ARGS="--only chaos'
	@echo '  --minutes 30"; parts: crashes, minute, chaos, fleet, fuzz (FUZZ_SECONDS=600 for each target)'

setup: ## Check the tools and build the control plane, once
	@scripts/setup.sh

# Always the whole workspace: a part of it would be built with other features, and what they share twice.
demo: setup ## Show Warden at work on a simulated cluster (as root; KEEP=1 leaves it running)
	@cargo build --workspace --bins
	@cargo run --quiet --bin demo -- $(ARGS)

test: setup ## Run every deterministic test
	@cargo test --workspace
	@cargo run --quiet --package xtask -- check
	@scripts/fuzz.sh 30

soak: setup ## Run the long tests: crash runs, a long outage, chaos, a large fleet, long fuzzing
	@cargo build --workspace --bins
	@cargo run --quiet --bin soak -- --fuzz-seconds $(FUZZ_SECONDS) $(ARGS)

bench: setup ## Measure the released programs
	@cargo build --profile shipped --package agent --package controller --package cli --package bench
	@WARDEN_BIN_DIR=$(abspath $(BUILT)/shipped) $(BUILT)/shipped/bench $(ARGS)

testbed: setup ## Run a control plane with simulated nodes until Ctrl-C
	@cargo run --quiet --package testbed -- $(ARGS)

fuzz: setup ## Fuzz every parser of outside text: make fuzz FUZZ_SECONDS=3600
	@scripts/fuzz.sh $(FUZZ_SECONDS)

lint: setup ## Check format, lints, documentation, dependencies and licences
	@cargo fmt --all --check
	@cargo clippy --workspace --all-targets -- -D warnings
	@RUSTDOCFLAGS='-D warnings -A rustdoc::private_intra_doc_links' cargo doc --workspace --no-deps --quiet
	@PATH="$$(scripts/lint-tools.sh cargo-deny):$$PATH" cargo deny check bans licenses sources

audit: setup ## Check dependencies for known vulnerabilities (fetches the RustSec database from GitHub)
	@PATH="$$(scripts/lint-tools.sh cargo-deny):$$PATH" cargo deny check advisories

fmt: ## Format the code
	@cargo fmt --all

generate: ## Write the generated files again
	@cargo run --quiet --package xtask -- generate
