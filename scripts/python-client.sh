#!/usr/bin/env bash
# Makes, once, the Python with which the end-to-end tests run a client in another language
# (tests/clients/python): a virtual environment in the cache folder. Prints its interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

requirements=tests/clients/python/requirements.txt
cache=${XDG_CACHE_HOME:-$HOME/.cache}/warden
folder=$cache/python-client

mkdir -p "$cache"
# One at a time: tests and setup may ask at once.
exec 9> "$cache/python-client.lock"
flock 9

# Made for exactly these requirements, and whole.
if ! cmp -s "$requirements" "$folder/requirements.txt"; then
  command -v python3 > /dev/null || {
    echo 'python-client: no python3 (Debian: apt-get install python3 python3-venv)' >&2
    exit 1
  }
  printf 'python-client: installing %s into %s\n' "$(paste -sd ' ' "$requirements")" "$folder" >&2
  rm -rf "$folder"
  python3 -m venv "$folder" || {
    echo 'python-client: python3 has no venv (Debian: apt-get install python3-venv)' >&2
    exit 1
  }
  "$folder/bin/python" -m pip install --quiet --disable-pip-version-check \
    --requirement "$requirements" >&2
  cp "$requirements" "$folder/requirements.txt"
fi
echo "$folder/bin/python"
