#!/usr/bin/env bash
# Compiles every GPU kernel for Rubin: sm_100f, whose code it runs, with the toolkit's nvcc, and its own
# sm_107a with a newer one. Nothing is run: compiled-only.
#   rubin_build_test.sh SOURCE_DIR DEPS
set -euo pipefail
cd "$1"
NVCC=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
[[ -x $NVCC ]] || { echo "no nvcc"; exit 77; }
rubin=$(setup/rubin.sh "$2")
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
compile() {  # NVCC TARGET SOURCE
  "$1" -std=c++20 -O3 -gencode="arch=compute_$2,code=sm_$2" --expt-relaxed-constexpr -I. \
    -c "$3" -o "$out/object.o"
}
for source in kernels/*/*.cu; do
  echo "$source"
  compile "$NVCC" 100f "$source"
  compile "$rubin" 107a "$source"
done
