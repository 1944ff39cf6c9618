#!/usr/bin/env bash
# Checks that what the make targets need is here, and makes what can be made: the pinned Rust
# toolchain (by rustup; without it, any Rust that is as new is taken) and the control plane (by
# scripts/control-plane.sh). Everything that is missing is told at once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

missing=()

toolchain=$(sed -n 's/^channel = "\(.*\)"$/\1/p' rust-toolchain.toml)

# Answers whether cargo, clippy and rustfmt of the pinned version run here.
rust_is_ready() {
  [[ $(rustc --version 2>/dev/null) == "rustc $toolchain "* ]] &&
    cargo clippy --version > /dev/null 2>&1 && cargo fmt --version > /dev/null 2>&1
}

# Answers whether the Rust that is here is as new as the pinned one or newer.
rust_is_new_enough() {
  local here
  here=$(rustc --version 2>/dev/null | cut -d ' ' -f 2 | cut -d - -f 1)
  cargo --version > /dev/null 2>&1 && [[ -n $here ]] &&
    [[ $(printf '%s\n' "$toolchain" "$here" | sort --version-sort | head -n 1) == "$toolchain" ]]
}

if ! rust_is_ready; then
  if command -v rustup > /dev/null; then
    printf 'setup: installing Rust %s with rustup\n' "$toolchain" >&2
    rustup toolchain install "$toolchain" --profile minimal --component clippy --component rustfmt >&2 ||
      missing+=("Rust $toolchain: \`rustup toolchain install $toolchain\` failed, see above")
  elif rust_is_new_enough; then
    printf 'setup: taking %s; the project is checked with %s (only make lint and make fmt need clippy and rustfmt)\n' \
      "$(rustc --version | cut -d ' ' -f 1,2)" "$toolchain" >&2
  elif command -v cargo > /dev/null; then
    missing+=("Rust $toolchain or newer: here is $(rustc --version 2>/dev/null || echo 'no rustc'); install rustup (https://rustup.rs), which brings it, or a newer Rust")
  else
    missing+=("Rust $toolchain or newer: install rustup (https://rustup.rs), which brings it")
  fi
fi

command -v cc > /dev/null ||
  missing+=("a C compiler called cc, for SQLite and the TLS library (Debian: apt-get install gcc libc6-dev)")
[[ $(uname -s) == Linux ]] ||
  missing+=("Linux: the agent reads its kernel log, and the tests its /proc")

if (( ${#missing[@]} > 0 )); then
  printf 'setup: missing\n' >&2
  printf '  - %s\n' "${missing[@]}" >&2
  exit 1
fi

scripts/control-plane.sh > /dev/null
