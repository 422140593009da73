#!/usr/bin/env bash
# Runs a test program as root of a small machine of its own, under another kernel: control groups of
# version 2 alone, project quota on every file system.
#
#   run.sh KERNELS SERIES FILE-SYSTEM PROGRAM FILTER
#
# KERNELS/SERIES/ holds boot/vmlinuz-* and lib/modules (setup/guest.sh puts them there). FILE-SYSTEM
# (ext4 or xfs) is what /tmp of the guest is. Exit code 77: skipped, something is not on this machine.
# The guest computes by qemu's translation, which needs nothing of the host and is some ten times
# slower; ORRERY_GUEST_ACCEL=kvm where /dev/kvm runs unmodified kernels.
set -euo pipefail
kernel=$1/$2 fs=$3 program=$4 filter=$5
seconds=${ORRERY_GUEST_SECONDS:-3000}

skip() {
  echo "skipped: $*"
  exit 77
}
[[ $(uname -m) == x86_64 ]] || skip "the guest is an x86-64 machine"
[[ -d $kernel ]] || skip "no kernel $2 in $1 (./orrery test --slow fetches it on Debian)"
for tool in qemu-system-x86_64 busybox mkfs.ext4 "mkfs.$fs" xz git; do
  command -v "$tool" >/dev/null || skip "$tool is not installed"
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What finds the disk, in the order in which one needs the other. Absent ones are built in.
modules=(virtio virtio_ring virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk
  crc32c-intel libcrc32c crc16 mbcache jbd2 ext4 xfs quota_tree quota_v2 overlay loop binfmt_misc)
make_initrd() {
  local root=$work/initrd name file n=10
  mkdir -p "$root"/{bin,dev,proc,sys,modules,new}
  cp "$(command -v busybox)" "$root/bin/busybox"
  for name in "${modules[@]}"; do
    file=$(find -L "$kernel/lib/modules" \( -name "$name.ko" -o -name "$name.ko.xz" \) -print -quit)
    [[ $file ]] || continue
    case $file in
      *.xz) xz -dc "$file" ;;
      *) cat "$file" ;;
    esac >"$root/modules/$((n++))-$name.ko"
  done
  cat >"$root/init" <<'INIT'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc none /proc
$b mount -t sysfs none /sys
$b mount -t devtmpfs none /dev
for module in /modules/*; do $b insmod $module || echo "no $module"; done
$b mount -t ext4 -o prjquota /dev/vda /new && $b mount -t FS -o prjquota /dev/vdb /new/tmp ||
  $b poweroff -f
$b chmod 1777 /new/tmp
for folder in dev proc sys; do $b mount -o move /$folder /new/$folder; done
exec $b switch_root /new /begin
INIT
  sed -i "s/-t FS/-t $fs/" "$root/init"
  chmod +x "$root/init"
  (cd "$root" && find . | busybox cpio -o -H newc | gzip -1) >"$work/initrd.gz"
}

# put FILE...: programs with the libraries they need, at the same places.
put() {
  local file library
  for file in "$@"; do
    mkdir -p "$tree$(dirname "$file")"
    cp -Ln "$file" "$tree$file"
    for library in $(ldd "$file" 2>/dev/null | grep -o '/[^ ]*' || true); do
      mkdir -p "$tree$(dirname "$library")"
      cp -Ln "$library" "$tree$library"
    done
  done
}

make_disks() {
  local applet
  tree=$work/tree
  mkdir -p "$tree"/{bin,sbin,dev,proc,sys,tmp,etc,root,var/lib}
  cp "$(command -v busybox)" "$tree/bin/busybox"
  for applet in $(busybox --list); do ln -sf busybox "$tree/bin/$applet"; done
  rm -f "$tree/bin/busybox" && cp "$(command -v busybox)" "$tree/bin/busybox"
  put "$program" "$(command -v mkfs.ext4)" "$(command -v git)" "$(command -v ldd)" /bin/bash
  ln "$tree$program" "$tree/program"  # its own place may be below /tmp
  echo 'root:x:0:0:root:/root:/bin/sh' >"$tree/etc/passwd"
  cat >"$tree/begin" <<BEGIN
#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mkdir -p /dev/pts /dev/shm
mount -t devpts none /dev/pts
mount -t tmpfs none /dev/shm
mount -t cgroup2 none /sys/fs/cgroup
ip link set lo up
# With it Debian's 6.12 wakes nobody to write dirty pages out, and a command that writes a file larger than
# its memory limit is killed for memory.
echo 0 2>/dev/null >/sys/kernel/mm/lru_gen/enabled
echo "guest: Linux \$(uname -r); /tmp is \$(cat /proc/mounts | while read -r device place rest; do
  [ \$place = /tmp ] && echo \$rest; done)"
/program --gtest_color=no --gtest_filter='$filter'
echo "guest: ended with \$?"
poweroff -f
BEGIN
  chmod +x "$tree/begin"
  truncate -s 3G "$work/root.img" "$work/tmp.img"
  mkfs.ext4 -q -F -O quota,project -E root_owner=0:0 -d "$tree" "$work/root.img"
  case $fs in
    ext4) mkfs.ext4 -q -F -O quota,project "$work/tmp.img" ;;
    *) "mkfs.$fs" -q -f "$work/tmp.img" ;;
  esac
}

# Without cx16: qemu 7.2 translates cmpxchg16b so that kernels from 6.5 on, whose allocator uses it,
# break.
accelerate=(-accel tcg,thread=multi -cpu Nehalem,+rdrand,-cx16)
[[ ${ORRERY_GUEST_ACCEL-} == kvm ]] && accelerate=(-accel kvm -cpu host)

make_initrd
make_disks
timeout "$seconds" qemu-system-x86_64 "${accelerate[@]}" -smp 2 -m 4096 -nographic -no-reboot \
  -kernel "$kernel"/boot/vmlinuz-* -initrd "$work/initrd.gz" \
  -append "console=ttyS0 quiet panic=-1 cgroup_no_v1=all" \
  -drive "file=$work/root.img,if=virtio,format=raw,cache=unsafe" \
  -drive "file=$work/tmp.img,if=virtio,format=raw,cache=unsafe" \
  </dev/null 2>&1 | sed -u 's|\r$||' | tee "$work/log"
grep -q '^guest: ended with 0$' "$work/log" && grep -Eq '^\[  PASSED  \] [1-9]' "$work/log" || {
  echo "the tests in the guest failed, or it did not come to its end within $seconds s"
  exit 1
}
