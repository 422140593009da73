# ./orrery test: set-up with the tests' needs, release build with tests, ctest. Sourced by the launcher.
source "$ROOT/setup/build.sh"

has_gpu() { command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; }

# excluded_labels SLOW: the regular expression of the labels that this run leaves out.
excluded_labels() {
  local labels=()
  (($1)) || labels+=(slow)
  has_gpu || labels+=(gpu multi_gpu)
  ((${#labels[@]})) && (IFS='|'; echo "^(${labels[*]})\$")
}

# run_ctest FOLDER CTEST-ARGUMENTS...: prints its output; the results are left in FOLDER/tests.xml.
run_ctest() {
  local folder=$1
  shift
  rm -f "$folder/tests.xml"
  ctest --test-dir "$folder" --parallel "$(nproc)" --output-on-failure --no-tests=error \
    --output-junit "$folder/tests.xml" "$@" </dev/null
}

skipped_tests() {
  sed -n 's/.*<testcase name="\([^"]*\)".* status="\(notrun\|disabled\)".*/\1/p' "$@" | sort
}

count_of() { grep -ho "<testcase [^>]*status=\"$1\"" "${@:2}" | wc -l; }

# The closing line, and the exit code.
summary() {
  local start=$1 no_skip=$2 status=$3 reports=("${@:4}") skipped
  mapfile -t skipped < <(skipped_tests "${reports[@]}")
  if ((${#skipped[@]})); then
    printf 'skipped: %s\n' "${skipped[@]}"
  fi
  if ((no_skip && ${#skipped[@]})); then
    echo "here no test may skip itself (--no-skip), and ${#skipped[@]} did"
    status=1
  fi
  say "./orrery test took $((SECONDS - start)) s"
  printf '%d passed, %d failed, %d skipped\n' "$(count_of run "${reports[@]}")" \
    "$(count_of fail "${reports[@]}")" "${#skipped[@]}"
  return "$status"
}

# Fuzzing, one target after the other so that each has the time it was promised.
fuzz_series() {
  with_lock "$BUILD-fuzz/.lock" build_preset fuzz all
  run_ctest "$BUILD-fuzz" --parallel 1
}

test_command() {
  local start=$SECONDS slow=0 no_skip=0 status=0 reports=("$BUILD/tests.xml") arguments=() labels
  while (($#)); do
    case $1 in
      --slow) slow=1 ;;
      --no-skip) no_skip=1 ;;
      -h | --help)
        help_text
        return
        ;;
      *) arguments+=("$1") ;;
    esac
    shift
  done
  ensure_test_setup
  with_lock "$BUILD/.lock" build_preset release all
  export ORRERY_ORACLE_PYTHON=${ORRERY_ORACLE_PYTHON-$ORACLES/bin/python}
  labels=$(excluded_labels "$slow") || true
  run_ctest "$BUILD" ${labels:+-LE "$labels"} "${arguments[@]}" || status=$?
  if ((slow)) && compgen -G "$ROOT/fuzz/*_fuzz.cc" >/dev/null; then
    fuzz_series || status=$?
    reports+=("$BUILD-fuzz/tests.xml")
  fi
  summary "$start" "$no_skip" "$status" "${reports[@]}"
}
