#!/usr/bin/env bash
# Compiles every GPU kernel for sm_100f, whose code Rubin (sm_107) runs. Nothing is run: compiled-only.
#   rubin_build_test.sh SOURCE_DIR
set -euo pipefail
cd "$1"
NVCC=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
[[ -x $NVCC ]] || { echo "no nvcc"; exit 77; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
for source in kernels/*/*.cu; do
  echo "$source"
  "$NVCC" -std=c++20 -O3 -gencode=arch=compute_100f,code=sm_100f --expt-relaxed-constexpr -I. \
    -c "$source" -o "$out/object.o"
done
