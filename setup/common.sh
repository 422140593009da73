# What the launcher's parts share. Sourced by them, not run. Everything said goes to standard error,
# so that the standard output of `./orrery COMMAND` is the command's own.

say() { printf 'orrery: %s\n' "$*" >&2; }
die() {
  say "$@"
  exit 1
}

# step TEXT COMMAND...: runs the command, says before what it does and after how long it took.
step() {
  local text=$1 start=$SECONDS status=0
  shift
  say "$text ..."
  "$@" || status=$?
  if ((status == 0)); then
    say "$text: done in $((SECONDS - start)) s"
  else
    say "$text: failed after $((SECONDS - start)) s (exit code $status)"
  fi
  return "$status"
}

# with_lock FILE COMMAND...: one process at a time; a second one waits and says so. The lock goes with
# the process that holds it, so none is left behind, whatever ends that process.
with_lock() {
  local file=$1
  shift
  mkdir -p "$(dirname "$file")" 2>/dev/null && [[ -w $(dirname "$file") ]] ||
    die "not set up or built yet, and $(id -un) cannot write to $(dirname "$file")"
  (
    exec 9>"$file"
    if ! flock --nonblock 9; then
      say "another ./orrery is at work here; waiting for it"
      flock 9
    fi
    "$@"
  )
}

# need_space FOLDER MEGABYTES WHAT
need_space() {
  local free
  free=$(df --output=avail -m "$1" | tail -n 1)
  if ((free < $2)); then
    die "$3 needs $2 MB in $1 and $((free)) MB are free: make room and run the same command again"
  fi
}

# Names of package lists. "NAME [debian]" is for that distribution alone.
package_names() {
  local id
  id=$(. /etc/os-release 2>/dev/null && echo "${ID-}")
  sed -e 's/#.*//' "$@" | awk -v only="[$id]" 'NF == 1 || (NF == 2 && $2 == only) { print $1 }'
}

# Prints the packages of the given lists that are not installed.
missing_packages() {
  package_names "$@" | sort -u | {
    mapfile -t wanted
    comm -23 <(printf '%s\n' "${wanted[@]}") <(
      dpkg-query -W -f '${binary:Package} ${db:Status-Status}\n' "${wanted[@]}" 2>/dev/null |
        awk '$2 == "installed" { sub(/:.*/, "", $1); print $1 }' | sort -u
    )
  }
}
