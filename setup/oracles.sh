# The Python environment of the tests' oracles, .deps/oracles: transformers, tokenizers, jinja2, math-verify,
# TensorBoard and what they need, as setup/oracles.lock says. Sourced after setup.sh.
ORACLES=$DEPS/oracles

# Prefixes of the CUDA libraries that PyTorch names as needed and never calls on a CPU.
readonly CUDA_ONLY=libcublas,libcudnn,libcufft,libcufile,libcurand,libcusolver,libcusparse,libnccl,libnvshmem

python_for_oracles() {
  local python
  for python in /usr/bin/python3 python3 python3.12 python3.11; do
    if "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' \
      2>/dev/null; then
      echo "$python"
      return
    fi
  done
  die "the test oracles need Python 3.11 or 3.12 with its venv module (Debian package python3-venv)"
}

oracles_key() {
  { cat "$ROOT/setup/oracles.lock" "$ROOT/setup/oracles.sh" "$ROOT/setup/cut_libraries.py"; echo "$ORACLES"; } |
    sha256sum | cut -d ' ' -f 1
}

fill_oracles() {
  local python=$ORACLES/bin/python site quiet=()
  [[ -t 2 ]] || quiet=(--quiet --progress-bar=off)
  mkdir -p "$DEPS/.tmp.oracles"
  TMPDIR=$DEPS/.tmp.oracles "$python" -m pip install --disable-pip-version-check --no-deps --no-compile \
    --only-binary=:all: --require-hashes "${quiet[@]}" -r "$ROOT/setup/oracles.lock" </dev/null >&2 ||
    die "could not install the Python oracles from PyPI (the lines above say why)"
  rm -rf "$DEPS/.tmp.oracles"
  site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  # PyTorch without the CUDA libraries that the CPU never calls; see cut_libraries.py.
  "$python" "$ROOT/setup/cut_libraries.py" "$CUDA_ONLY" \
    "$site"/torch/lib/libtorch_{cuda,python,nvshmem}.so >/dev/null || return
  rm -rf "$site"/torch/include "$site"/torch/bin/{ptxas,protoc*}
  mkdir -p "$site/nvidia/cu13"
  ln -sfn "$DEPS/cuda/lib" "$site/nvidia/cu13/lib"
  echo 'import os, sys; sys.setdlopenflags(os.RTLD_LAZY)' >"$site/lazy_binding.pth"
  # One copy on disk of what LibTorch and this PyTorch have in common.
  if cmp -s "$site/torch/lib/libtorch_cpu.so" "$DEPS/torch/lib/libtorch_cpu.so"; then
    ln -f "$DEPS/torch/lib/libtorch_cpu.so" "$site/torch/lib/libtorch_cpu.so"
  fi
  "$python" -c 'import torch, transformers, tensorboard, math_verify; torch.ones(2, 2) @ torch.ones(2, 2)' ||
    die "the Python oracles do not start (the lines above say why)"
}

make_oracles() {
  local python
  python=$(python_for_oracles)
  rm -rf "$ORACLES"
  "$python" -m venv "$ORACLES" >&2 || die "$python could not make a virtual environment in $ORACLES"
  fill_oracles
}

install_oracles() {
  [[ -r $ORACLES/.stamp && $(<"$ORACLES/.stamp") == "$(oracles_key)" ]] && return
  need_space "$DEPS" 3500 "the Python oracles"
  step "Python oracles of the tests (.deps/oracles)" make_oracles
  oracles_key >"$ORACLES/.stamp.new"
  mv "$ORACLES/.stamp.new" "$ORACLES/.stamp"
}
