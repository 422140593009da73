# arm64 libraries for the cross-compiled tests, in .deps/arm64. Sourced after setup.sh.
# apt-get resolves and downloads them as for an arm64 machine, with state folders of its own: neither root nor a
# foreign architecture in the system's dpkg is needed. The C and C++ libraries are the cross compiler's.
ARM64=$DEPS/arm64

arm64_key() { cat "$ROOT/setup/packages-arm64.txt" "$ROOT/setup/arm64.sh" | sha256sum | cut -d ' ' -f 1; }

# download_arm64 FOLDER LIST: the packages of a list, and all they need, into FOLDER/apt/cache/archives.
download_arm64() {
  local state=$1/apt packages
  mapfile -t packages < <(package_names "$ROOT/setup/$2")
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
  download_arm64 "$work" packages-arm64.txt || return
  for file in "$work"/apt/cache/archives/*.deb; do
    case ${file##*/} in
      libc6* | libc-[bdl]* | linux-libc-* | libgcc* | libstdc++* | libcrypt* | gcc-*) ;;
      *) dpkg-deb -x "$file" "$work/root" || return ;;
    esac
  done
  arm64_key >"$work/root/.stamp"
  rm -rf "$ARM64"
  mv "$work/root" "$ARM64"
  rm -rf "$work"
}

# A small arm64 system for the test that an image of another architecture runs: unpacked, no package's
# script is run.
ARM64_IMAGE=$DEPS/arm64-image

arm64_image_key() { sha256sum <"$ROOT/setup/packages-arm64-image.txt" | cut -d ' ' -f 1; }

make_arm64_image() {
  local work=$DEPS/.tmp.arm64-image file
  rm -rf "$work"
  mkdir -p "$work"
  download_arm64 "$work" packages-arm64-image.txt || return
  for file in "$work"/apt/cache/archives/*.deb; do
    dpkg-deb -x "$file" "$work/root" || return
  done
  [[ -e $work/root/bin/sh ]] || ln -s bash "$work/root/bin/sh"
  rm -rf "$work/root/usr/share/"{doc,man,locale}
  rm -rf "$ARM64_IMAGE"
  mv "$work/root" "$ARM64_IMAGE"
  arm64_image_key >"$ARM64_IMAGE.stamp"
  rm -rf "$work"
}

install_arm64_image() {
  [[ $(uname -m) == x86_64 ]] && command -v apt-get >/dev/null || return 0
  [[ -d $ARM64_IMAGE && -r $ARM64_IMAGE.stamp && $(<"$ARM64_IMAGE.stamp") == "$(arm64_image_key)" ]] && return
  step "an arm64 system for the emulation test (.deps/arm64-image)" make_arm64_image || {
    rm -rf "$DEPS/.tmp.arm64-image"
    say "without it the test of an emulated image is skipped (on Ubuntu: apt needs a source that has arm64)"
  }
}

install_arm64() {
  [[ $(uname -m) == x86_64 ]] && command -v apt-get >/dev/null || return 0
  [[ -r $ARM64/.stamp && $(<"$ARM64/.stamp") == "$(arm64_key)" ]] && return
  step "arm64 libraries for the cross-compiled tests (.deps/arm64)" make_arm64 || {
    rm -rf "$DEPS/.tmp.arm64"
    say "without them the test arm64 is skipped (on Ubuntu: apt needs a source that has arm64)"
  }
}
