# ./orrery test: set-up with the tests' needs, build with tests, ctest. Sourced by the launcher.
source "$ROOT/setup/build.sh"

has_gpu() { command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; }

# excluded_labels SLOW: the regular expression of the labels that this run leaves out.
excluded_labels() {
  local labels=()
  (($1)) || labels+=(slow)
  has_gpu || labels+=(gpu multi_gpu)
  ((${#labels[@]})) && (IFS='|'; echo "^(${labels[*]})\$")
}

reports=()
# run_ctest FOLDER CTEST-ARGUMENTS...: prints its output; the results are left in FOLDER/tests.xml.
run_ctest() {
  local folder=$1
  shift
  rm -f "$folder/tests.xml"
  reports+=("$folder/tests.xml")
  ctest --test-dir "$folder" --parallel "$(nproc)" --output-on-failure --no-tests=error \
    --output-junit "$folder/tests.xml" "$@" </dev/null
}

targets=(all)  # what is built; --targets names fewer
# build_and_test PRESET CTEST-ARGUMENTS...
build_and_test() {
  with_lock "$(folder_of "$1")/.lock" build_preset "$1" "${targets[@]}" && run_ctest "$(folder_of "$1")" "${@:2}"
}

# The torch-free targets cross-compiled for arm64. Under qemu-user run the tests of what computes.
# arm64_series CTEST-ARGUMENTS...: what leaves tests out for x86-64 leaves them out here.
ARM64_FOLDERS='configs|kernels|orchestrator/base|trainer/loss|trainer/model'
arm64_series() {
  if [[ ! -e $ARM64/.stamp ]]; then
    say "arm64: not cross-compiled on this machine (see ./orrery setup --tests)"
    return
  fi
  build_and_test arm64 -L "^($ARM64_FOLDERS)\$" -LE '^slow$' "$@"
}

# One target after the other, so that each has the time it was promised.
fuzz_series() {
  compgen -G "$ROOT/fuzz/*_fuzz.cc" >/dev/null || return 0
  build_and_test fuzz --parallel 1
}

skipped_tests() {
  sed -n 's/.*<testcase name="\([^"]*\)".* status="\(notrun\|disabled\)".*/\1/p' "$@" | sort
}

count_of() { { grep -ho "<testcase [^>]*status=\"$1\"" "${@:2}" || true; } | wc -l; }

# summary STATUS NO-SKIP: the closing lines; returns the exit code of all.
summary() {
  local status=$1 skipped report
  for report in "${reports[@]}"; do
    [[ -s $report ]] || die "ctest ended without a report (lines above)"
  done
  ((${#reports[@]})) || die "no test was run: the build failed (lines above)"
  mapfile -t skipped < <(skipped_tests "${reports[@]}")
  if ((${#skipped[@]})); then
    printf 'skipped: %s\n' "${skipped[@]}"
    if (($2)); then
      echo "no test may skip itself here (--no-skip), and ${#skipped[@]} did"
      status=1
    fi
  fi
  say "./orrery test took $SECONDS s"
  printf '%d passed, %d failed, %d skipped\n' "$(count_of run "${reports[@]}")" \
    "$(count_of fail "${reports[@]}")" "${#skipped[@]}"
  return "$status"
}

test_command() {
  local preset=release slow=0 no_skip=0 some=0 status=0 arguments=() labels
  while (($#)); do
    case $1 in
      --slow) slow=1 ;;
      --no-skip) no_skip=1 ;;
      --preset)
        preset=${2-}
        known_preset "$preset"
        shift
        ;;
      --targets)
        read -ra targets <<<"${2-}"
        some=1
        shift
        ;;
      -h | --help)
        help_text
        return
        ;;
      -R | -L | -I | --tests-regex | --label-regex | --tests-information | --rerun-failed)
        some=1
        arguments+=("$1")
        ;;
      *) arguments+=("$1") ;;
    esac
    shift
  done
  ensure_test_setup
  ((!slow)) || ensure_guest_setup
  export ORRERY_ORACLE_PYTHON=${ORRERY_ORACLE_PYTHON-$ORACLES/bin/python}
  labels=$(excluded_labels "$slow") || true
  build_and_test "$preset" ${labels:+-LE "$labels"} "${arguments[@]}" || status=$?
  if [[ $preset == release ]] && ((!some)); then
    arm64_series "${arguments[@]}" || status=$?
    ((!slow)) || fuzz_series || status=$?
  fi
  summary "$status" "$no_skip"
}
