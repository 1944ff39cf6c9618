#!/usr/bin/env bash
# Installs a tool that the make targets call, once, in its pinned version, into the cache, and
# prints the folder of its program. Usage: lint-tools.sh cargo-deny|cargo-fuzz
set -euo pipefail

case ${1:-} in
  cargo-deny) version=0.20.2 ;;
  cargo-fuzz) version=0.13.2 ;;
  *)
    printf 'lint-tools: got "%s"; known are cargo-deny and cargo-fuzz\n' "${1:-}" >&2
    exit 2
    ;;
esac

tools=${XDG_CACHE_HOME:-$HOME/.cache}/warden/tools
root=$tools/$1-$version
if [[ ! -x $root/bin/$1 ]]; then
  printf 'lint-tools: installing %s %s, once (some minutes)\n' "$1" "$version" >&2
  mkdir -p "$tools"
  # Built apart from Warden's own target folder, and thrown away.
  build=$(mktemp -d "$tools/build.XXXXXX")
  trap 'rm -rf "$build"' EXIT
  CARGO_TARGET_DIR=$build cargo install --quiet --locked --root "$root" --version "$version" "$1" >&2
fi
printf '%s\n' "$root/bin"
