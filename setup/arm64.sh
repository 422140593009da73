# arm64 libraries for the cross-compiled tests, in .deps/arm64. Sourced after setup.sh.
# apt-get resolves and downloads them as for an arm64 machine, with state folders of its own: neither root nor a
# foreign architecture in the system's dpkg is needed. The C and C++ libraries are the cross compiler's.
ARM64=$DEPS/arm64

arm64_key() { cat "$ROOT/setup/packages-arm64.txt" "$ROOT/setup/arm64.sh" | sha256sum | cut -d ' ' -f 1; }

download_arm64() {
  local state=$1/apt packages
  mapfile -t packages < <(package_names "$ROOT/setup/packages-arm64.txt")
  mkdir -p "$state"/lists/partial "$state"/cache/archives/partial
  : >"$state/status"
  local apt=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o "Dir::State=$state"
    -o "Dir::State::status=$state/status" -o "Dir::Cache=$state/cache" -o Debug::NoLocking=1
    -o "APT::Sandbox::User=$(id -un)")
  "${apt[@]}" update </dev/null >&2 &&
    "${apt[@]}" install -y --no-install-recommends --download-only "${packages[@]}" </dev/null >&2
}

make_arm64() {
  local work=$DEPS/.tmp.arm64 file
  rm -rf "$work"
  mkdir -p "$work"
  download_arm64 "$work" || return
  for file in "$work"/apt/cache/archives/*.deb; do
    case ${file##*/} in
      libc6* | libc-* | linux-libc-* | libgcc* | libstdc++* | libcrypt* | gcc-*) ;;
      *) dpkg-deb -x "$file" "$work/root" || return ;;
    esac
  done
  arm64_key >"$work/root/.stamp"
  rm -rf "$ARM64"
  mv "$work/root" "$ARM64"
  rm -rf "$work"
}

install_arm64() {
  [[ $(uname -m) == x86_64 ]] && command -v apt-get >/dev/null || return 0
  [[ -r $ARM64/.stamp && $(<"$ARM64/.stamp") == "$(arm64_key)" ]] && return
  step "arm64 libraries for the cross-compiled tests (.deps/arm64)" make_arm64 || {
    rm -rf "$DEPS/.tmp.arm64"
    say "without them the test arm64 is skipped (on Ubuntu: apt needs a source that has arm64)"
  }
}
