#!/usr/bin/env bash
# Brings the nvcc of rubin.lock to DEPS/rubin, once, and prints its path.
#   rubin.sh DEPS
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
deps=$1
[[ $(uname -m) == x86_64 ]] || { echo "rubin.lock has x86-64 wheels only" >&2; exit 1; }
key=$(sha256sum <"$here/rubin.lock" | cut -d ' ' -f 1)
nvcc=$deps/rubin/nvidia/cu13/bin/nvcc
if [[ $(cat "$deps/rubin/.stamp" 2>/dev/null) != "$key" ]]; then
  work=$(mktemp -d "$deps/.tmp.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --require-hashes -d "$work/wheels" -r "$here/rubin.lock" >&2
  for wheel in "$work"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$work/made"; done
  chmod +x "$work"/made/nvidia/cu13/bin/* "$work"/made/nvidia/cu13/nvvm/bin/*
  echo "$key" >"$work/made/.stamp"
  rm -rf "$deps/rubin"
  mv "$work/made" "$deps/rubin"
fi
echo "$nvcc"
