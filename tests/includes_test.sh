#!/usr/bin/env bash
# Who may include whom, and that every test on disk is registered.
#   includes_test.sh SOURCE_DIR          checks the tree
#   includes_test.sh --self-test         shows that each rule below sees a breach
# The rules are DESIGN section 1's; a file's includes of ours start with the folder's name.
set -euo pipefail

# folder | what it may include of ours (itself and orchestrator/base always)
RULES='
configs|
kernels|
orchestrator|configs
sandbox|orchestrator configs
rewards|orchestrator configs
rollout|orchestrator configs kernels trainer/model
trainer/model|orchestrator configs kernels
trainer|orchestrator configs kernels
'
OURS='configs|kernels|orchestrator|sandbox|rewards|rollout|trainer'

# Folders of their own rule inside a folder of another.
rule_folder() {
  case $1 in
    trainer/model/*) echo trainer/model ;;
    orchestrator/base/*) echo orchestrator/base ;;
    orchestrator/main.cc | orchestrator/commands/*) echo main ;;
    *) echo "${1%%/*}" ;;
  esac
}

# may_include FROM-FOLDER INCLUDED-FILE
may_include() {
  local from=$1 file=$2 allowed
  [[ $from == main ]] && return 0
  [[ $file == orchestrator/base/* ]] && return 0
  [[ $file == "$from"/* ]] && return 0
  for allowed in $(sed -n "s#^$from|##p" <<<"$RULES"); do
    [[ $file == "$allowed"/* ]] && return 0
  done
  return 1
}

# Prints "FILE:LINE:INCLUDED" for each include of ours.
includes_of_ours() {
  sources | xargs -r grep -nHE "^[[:space:]]*#[[:space:]]*include[[:space:]]+\"($OURS)/" |
    sed -E 's/^([^:]+):([0-9]+):.*"([^"]+)".*/\1:\2:\3/'
}

sources() {
  find configs kernels orchestrator sandbox rewards rollout trainer -type f \
    \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null | sort
}

# breach TEXT: reported and counted.
breaches=0
breach() {
  echo "$1"
  breaches=$((breaches + 1))
}

check_folders() {
  local file line included
  while IFS=: read -r file line included; do
    may_include "$(rule_folder "$file")" "$included" ||
      breach "$file:$line: $(rule_folder "$file") may not include $included"
  done < <(includes_of_ours)
}

# check_outside PATTERN FOLDER WHAT: headers of others' that belong in one folder only.
check_outside() {
  local file line
  while IFS=: read -r file line _; do
    [[ $(rule_folder "$file") == "$2" ]] || breach "$file:$line: $3"
  done < <(sources | xargs -r grep -nHE "^[[:space:]]*#[[:space:]]*include[[:space:]]+[<\"]($1)")
}

# A *_test.py may be registered through the *_test.sh of its name, which runs it.
check_tests_registered() {
  local folder
  while read -r folder; do
    grep -qE "orrery_test\($folder[ )]" tests/CMakeLists.txt ||
      breach "tests/$folder has tests and no orrery_test($folder ...) in tests/CMakeLists.txt"
  done < <(find tests -name '*_test.cc' -printf '%h\n' 2>/dev/null | sed 's#^tests/*##' | sort -u)
  while read -r file; do
    grep -qF -e "$file" -e "${file%.*}.sh" tests/CMakeLists.txt || breach "tests/$file is not registered in tests/CMakeLists.txt"
  done < <(find tests \( -name '*_test.sh' -o -name '*_test.py' \) -printf '%P\n' 2>/dev/null | sort)
}

check_tree() {
  cd "$1"
  breaches=0
  check_folders
  check_outside '(torch|ATen|c10)/' trainer 'torch may be included in trainer/ alone (not in trainer/model/)'
  check_outside '(cuda|cuda_runtime|cuda_runtime_api|cuda_bf16|nccl|cublas[^.]*)\.h' kernels \
    'CUDA may be included in kernels/ alone'
  check_tests_registered
  ((breaches == 0))
}

# Each line: FILE INCLUDE... and whether it is a breach.
self_test() {
  local failures=0 file include expected
  folder=$(mktemp -d)  # not local: the trap outlives the function
  trap 'rm -rf "$folder"' EXIT
  mkdir -p "$folder/tests/rewards"
  while read -r expected file include; do
    [[ -n $expected ]] || continue
    rm -rf "$folder"/{configs,kernels,orchestrator,sandbox,rewards,rollout,trainer}
    mkdir -p "$folder/$(dirname "$file")"
    echo "#include $include" >"$folder/$file"
    : >"$folder/tests/CMakeLists.txt"
    local result=allowed
    (check_tree "$folder") >/dev/null || result=breach
    if [[ $result != "$expected" ]]; then
      echo "self-test: $file with $include is taken as $result, not $expected"
      failures=$((failures + 1))
    fi
  done <<'CASES'
allowed configs/a.h "orchestrator/base/status.h"
breach  configs/a.h "orchestrator/types.h"
breach  kernels/linear/a.cc "configs/experiment.h"
breach  orchestrator/base/a.cc "orchestrator/types.h"
breach  orchestrator/loop/a.cc "trainer/trainer.h"
allowed orchestrator/loop/a.cc "configs/experiment.h"
allowed orchestrator/main.cc "trainer/trainer.h"
allowed orchestrator/commands/run.cc "rollout/engine.h"
breach  sandbox/a.cc "rewards/reward.h"
breach  rewards/a.cc "rollout/engine.h"
breach  rewards/a.cc "trainer/model/spec.h"
breach  rewards/a.cc   "trainer/trainer.h"
allowed rollout/a.cc "trainer/model/spec.h"
breach  rollout/a.cc "trainer/trainer.h"
breach  rollout/text/a.cc "sandbox/runner.h"
breach  trainer/a.cc "rollout/engine.h"
allowed trainer/a.cc "trainer/model/spec.h"
breach  trainer/model/a.cc "trainer/trainer.h"
allowed trainer/model/a.cc "configs/experiment.h"
breach  trainer/model/a.cc "rollout/engine.h"
allowed trainer/a.cc <torch/torch.h>
allowed trainer/loss/a.cc <ATen/ATen.h>
breach  trainer/model/a.cc <torch/torch.h>
breach  rollout/a.cc <ATen/ATen.h>
allowed kernels/linear/a.cu <cuda_runtime.h>
breach  orchestrator/loop/a.cc <cuda_runtime.h>
CASES
  mkdir -p "$folder/tests/rewards"
  : >"$folder/tests/rewards/a_test.cc"
  (check_tree "$folder") >/dev/null && { echo "self-test: an unregistered test goes unseen"; failures=$((failures + 1)); }
  echo 'orrery_test(rewards DEPS x)' >"$folder/tests/CMakeLists.txt"
  rm -rf "$folder"/{kernels,orchestrator}
  (check_tree "$folder") || { echo "self-test: a registered test is reported"; failures=$((failures + 1)); }
  ((failures == 0))
}

if [[ ${1-} == --self-test ]]; then
  self_test
else
  check_tree "$1"
fi
