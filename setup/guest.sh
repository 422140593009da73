# Kernels for the tests that run in a small machine of their own (tests/sandbox/guest), in .deps/guest/SERIES.
# Sourced after setup.sh. Packages of Debian's release and of its backports, by state folders of their own: the
# system's sources stay as they are. Elsewhere there are none, and those tests skip themselves.
GUEST=$DEPS/guest

# fetch_kernel SERIES SUITE-SUFFIX: the newest kernel of a series.
fetch_kernel() {
  local series=$1 suite=$2 work=$DEPS/.tmp.guest codename site name
  codename=$(. /etc/os-release && echo "${VERSION_CODENAME-}")
  site=$(apt-get indextargets --format '$(CODENAME) $(SITE)' | sed -n "s/^$codename //p" | head -n 1)
  [[ $site ]] || return 1
  rm -rf "$work"
  mkdir -p "$work"/apt/{lists/partial,cache/archives/partial}
  : >"$work/apt/status"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $site $codename$suite main" >"$work/list"
  local options=(-o "Dir::State=$work/apt" -o "Dir::State::status=$work/apt/status" -o "Dir::Cache=$work/apt/cache"
    -o "Dir::Etc::SourceList=$work/list" -o Dir::Etc::SourceParts=/dev/null -o "APT::Sandbox::User=$(id -un)")
  apt-get -qq "${options[@]}" update </dev/null >&2 || return
  name=$(apt-cache "${options[@]}" pkgnames "linux-image-$series." |
    grep -E '^linux-image-[0-9.]+[^-]*(-[0-9]+)?-cloud-amd64$' | sort -V | tail -n 1)
  [[ $name ]] || return 1
  (cd "$work" && apt-get -qq "${options[@]}" download "$name" </dev/null >&2) &&
    dpkg-deb -x "$work"/*.deb "$work/root" || return
  mkdir -p "$GUEST"
  rm -rf "${GUEST:?}/$series"
  mv "$work/root" "$GUEST/$series"
  rm -rf "$work"
}

install_guest() {
  [[ $(uname -m) == x86_64 && $(. /etc/os-release 2>/dev/null && echo "${ID-}") == debian ]] || return 0
  install_packages "$ROOT/setup/packages-guest.txt"
  local series suite
  for series in 6.1 6.12; do
    [[ -d $GUEST/$series ]] && continue
    suite=
    [[ $series == 6.12 ]] && suite=-backports
    step "Linux $series for tests in a guest (.deps/guest)" fetch_kernel "$series" "$suite" || {
      rm -rf "$DEPS/.tmp.guest"
      say "without it the tests under Linux $series are skipped"
    }
  done
}
