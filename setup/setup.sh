# ./orrery setup: packages and wheels. Sourced by the launcher (ROOT, DEPS, setup_key come from it).
# Each part looks first whether there is anything to do, so that running it again is cheap and an
# interrupted run continues.
source "$ROOT/setup/common.sh"

as_root=()
# Sets as_root to what runs a command as root, or fails.
find_root() {
  if ((EUID == 0)); then
    as_root=(env)
  elif command -v sudo >/dev/null && { [[ -t 0 ]] || sudo -n true 2>/dev/null; }; then
    as_root=(sudo env)
  else
    return 1
  fi
  as_root+=(DEBIAN_FRONTEND=noninteractive)
}

apt() { "${as_root[@]}" apt-get -o DPkg::Lock::Timeout=300 -qq "$@" </dev/null >&2; }

install_now() {
  if compgen -G '/var/lib/dpkg/updates/[0-9]*' >/dev/null; then
    "${as_root[@]}" dpkg --configure -a </dev/null >&2
  fi
  # The lists at hand may do; when they are missing or too old, they are fetched once.
  apt install -y --no-install-recommends "$@" 2>/dev/null && return
  apt update && apt install -y --no-install-recommends "$@"
}

# install_packages LIST...
install_packages() {
  local missing
  if ! command -v dpkg-query >/dev/null; then
    say "this is neither Debian nor Ubuntu: the packages of ${*#"$ROOT/"} are taken as installed"
    return
  fi
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]} == 0)) && return
  local command="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
  if ! find_root; then
    say "${#missing[@]} packages are missing, and installing them needs root. Ask an administrator for:"
    printf '\n    %s\n\n' "$command" >&2
    exit 1
  fi
  say "missing packages: ${missing[*]}"
  step "installing ${#missing[@]} packages" install_now "${missing[@]}" ||
    die "apt-get could not install them (its lines above say why; without a network it cannot). By hand: $command"
}

# Prints a Python that has pip: the system's, which the package list brings, or the one on the PATH.
python_with_pip() {
  local python
  for python in /usr/bin/python3 python3; do
    if "$python" -m pip --version >/dev/null 2>&1; then
      echo "$python"
      return
    fi
  done
  die "no python3 with pip (Debian packages python3 and python3-pip)"
}

install_wheels() {
  local python wheels=("$ROOT/setup/wheels.py" "$ROOT/setup/wheels.lock" "$DEPS")
  python3 "${wheels[@]}" --check 2>/dev/null && return
  python=$(python_with_pip)
  need_space "$DEPS" 2500 "unpacking LibTorch and Arrow"
  "$python" "${wheels[@]}"
}

set_up() {
  rm -rf "$DEPS"/.tmp.*
  install_packages "$ROOT/setup/packages.txt" "${@}"
  install_wheels
  setup_key >"$DEPS/.setup.new"
  mv "$DEPS/.setup.new" "$DEPS/.setup"
}

ensure_setup() {
  setup_is_current || with_lock "$DEPS/.lock" set_up
}

# What the tests need beside it.
ensure_test_setup() {
  source "$ROOT/setup/oracles.sh"
  source "$ROOT/setup/arm64.sh"
  with_lock "$DEPS/.lock" set_up "$ROOT/setup/packages-test.txt"
  with_lock "$DEPS/.lock" install_oracles
  with_lock "$DEPS/.lock" install_arm64
  with_lock "$DEPS/.lock" install_arm64_image
}

# And what the slow ones need.
ensure_guest_setup() {
  source "$ROOT/setup/guest.sh"
  with_lock "$DEPS/.lock" install_guest
}

setup_command() {
  local start=$SECONDS
  case ${1-} in
    '') ensure_setup ;;
    --tests | --oracles) ensure_test_setup ;;
    *)
      help_text >&2
      exit 2
      ;;
  esac
  say "set up in $((SECONDS - start)) s; next: ./orrery build, or any command"
}
