# ./orrery build. Sourced by the launcher (ROOT, DEPS, BUILD come from it).
source "$ROOT/setup/setup.sh"

# So that another clone of this tree finds what this one compiled (and CI what a developer did).
export CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=1

# One compile of a torch file takes about 1.5 GB.
jobs_at_once() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable/ { print int($2 / 1572864) }' /proc/meminfo)
  echo $((memory < 1 ? 1 : memory < cores ? memory : cores))
}

folder_of() { [[ $1 == release ]] && echo "$BUILD" || echo "$BUILD-$1"; }

# build_preset PRESET TARGET...
build_preset() {
  local preset=$1 folder
  shift
  folder=$(folder_of "$preset")
  need_space "$folder" 1500 "building"
  if [[ ! -e $folder/build.ninja ]]; then
    step "configuring ${folder#"$ROOT/"}" configure "$preset"
  fi
  step "building ${folder#"$ROOT/"} ($*)" cmake --build "$folder" -j "$(jobs_at_once)" --target "$@" >&2
}

configure() {
  (cd "$ROOT" && cmake --preset "$1" --log-level=WARNING "${@:2}" >&2) ||
    die "cmake could not configure the preset $1 (lines above)"
}

build_release() {
  [[ -e $ROOT/orchestrator/main.cc ]] ||
    die "this tree has no orchestrator/main.cc, so there is no orrery binary to build"
  touch "$BUILD/.built.new"
  build_preset release orrery
  mv "$BUILD/.built.new" "$BUILD/.built"
}

ensure_binary() {
  build_is_current || with_lock "$BUILD/.lock" build_release
}

known_preset() {
  case $1 in
    release | debug | asan | tsan | fuzz | arm64) ;;
    *)
      say "unknown preset '$1': release, debug, asan, tsan, fuzz or arm64"
      exit 2
      ;;
  esac
}

build_command() {
  local preset=${1-release}
  known_preset "$preset"
  case $preset in
    fuzz | arm64) ensure_test_setup ;;  # clang; the cross compiler and its libraries
    *) ensure_setup ;;
  esac
  if (($# == 0)); then
    ensure_binary
    say "build/orrery is up to date"
    return
  fi
  shift
  (($# > 0)) || set -- all
  with_lock "$(folder_of "$preset")/.lock" build_preset "$preset" "$@"
}
