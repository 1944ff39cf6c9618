#!/usr/bin/env bash
# Runs every fuzz target for some seconds, two at a time, and prints one line each. A finding
# fails, and the line says how to run it again. Usage: fuzz.sh [SECONDS [TARGET…]]
#
# The corpus that grows is kept in the cache, outside of the checkout; fuzz/seeds is only read.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${1:-30}
if ! [[ $seconds =~ ^[1-9][0-9]*$ ]]; then
  printf 'fuzz: "%s" is no number of seconds\n' "$seconds" >&2
  exit 2
fi
shift || true
targets=("$@")
if (( ${#targets[@]} == 0 )); then
  for file in fuzz/targets/*.rs; do targets+=("$(basename "$file" .rs)"); done
fi

cache=${XDG_CACHE_HOME:-$HOME/.cache}/warden/fuzz
tools=$(scripts/lint-tools.sh cargo-fuzz)
export PATH=$tools:$PATH
# Sanitizers are an unstable option of the pinned compiler.
export RUSTC_BOOTSTRAP=1
host=$(rustc -vV | sed -n 's/^host: //p')

printf 'fuzz: building (a first time all dependencies with sanitizers: minutes)\n' >&2
mkdir -p "$cache"
# Without a name all targets are built; their dependencies are the same.
only=()
if (( $# == 1 )); then only=("$1"); fi
if ! cargo fuzz build --fuzz-dir fuzz --target-dir "$cache/target" "${only[@]}" 2> "$cache/build.log"; then
  grep -v '^ *[0-9]*: \|^ *at ' "$cache/build.log" | tail -n 40 >&2
  exit 1
fi

# One target with its memory, time and corpus bounded; prints its line.
run() {
  local target=$1
  local corpus=$cache/corpus/$target artifacts=$cache/artifacts/$target log=$cache/$target.log
  mkdir -p "$corpus" "$artifacts"
  local options=(
    -max_total_time="$seconds" -rss_limit_mb=2048 -malloc_limit_mb=512 -timeout=20
    -print_final_stats=1 -artifact_prefix="$artifacts/"
  )
  [[ -f fuzz/dictionaries/$target ]] && options+=(-dict="fuzz/dictionaries/$target")
  local status=0
  "$cache/target/$host/release/$target" "${options[@]}" "$corpus" "fuzz/seeds/$target" \
    > "$log" 2>&1 || status=$?
  local runs new
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  new=$(sed -n 's/^stat::new_units_added: *//p' "$log")
  if (( status == 0 )); then
    printf 'fuzz: %-18s %9s runs, %4s new inputs, no finding\n' "$target" "$runs" "$new"
    return
  fi
  local input
  input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
  printf 'fuzz: %-18s FINDING after %s runs: %s\n' "$target" "${runs:-?}" \
    "$(grep -m 1 -E 'panicked|ERROR|Sanitizer' "$log" || tail -n 1 "$log")"
  sed -n '/panicked at/{n;s/^/  /p;q}' "$log"
  printf '  whole output: %s\n  again: %s %s\n' "$log" "$cache/target/$host/release/$target" \
    "${input:-(no input was kept)}"
  return 1
}
export -f run
export cache host seconds

printf '%s\n' "${targets[@]}" | xargs -P 2 -I '{}' bash -euo pipefail -c 'run {}' || {
  printf 'fuzz: there are findings, see above. A fixed one becomes a test of its crate and a seed under fuzz/seeds.\n' >&2
  exit 1
}
