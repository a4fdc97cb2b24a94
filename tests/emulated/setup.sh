#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Prepares the AVX-512/AMX emulator in a cache directory: builds a patched Bochs from Debian 13's
# source package, takes the kernel out of Debian 12's linux-image-cloud-amd64, compiles the guest's
# init and the launcher. Idempotent: what is up to date is left alone. See README.md.
#   --quiet          says nothing when all is up to date
#   KDA_BOCHS_CACHE  cache directory (default ${XDG_CACHE_HOME:-$HOME/.cache}/kda-bochs)
#   KDA_BOCHS_JOBS   parallel compile jobs (default: number of CPUs)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${KDA_BOCHS_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/kda-bochs}
jobs=${KDA_BOCHS_JOBS:-$(nproc)}
die() { echo "kda-bochs setup: ERROR: $*" >&2; exit 1; }
say() { echo "kda-bochs setup: $*"; }

[ "$(uname -m)" = x86_64 ] || die "the host must be x86-64 (this is $(uname -m))"
mkdir -p "$cache" || die "cannot create $cache"
cache=$(cd "$cache" && pwd)
case $cache in *[[:space:],]*) die "the cache path must not contain blanks or commas: $cache" ;; esac
exec 9> "$cache/.lock"
flock 9

# A stage is done when its stamp holds the hash of all that it depends on.
stamp() { cat "$@" | sha256sum | cut -d' ' -f1; }
done_already() { [ -e "$cache/$1.stamp" ] && [ "$(cat "$cache/$1.stamp")" = "$2" ]; }
bochs_stamp=$(stamp "$here/bochs.patch" <(sed -n '/^build_bochs()/,/^}/p' "$here/setup.sh"))
kernel_stamp=$(stamp <(sed -n '/^get_kernel()/,/^}/p' "$here/setup.sh"))
tools_stamp=$(stamp "$here/rom.S" "$here/init.c" "$here/host.cpp" <(sed -n '/^build_tools()/,/^}/p' "$here/setup.sh"))

need() { # need COMMAND PACKAGE...: what is missing is installed (root) or reported
  local missing=()
  while [ $# -gt 0 ]; do command -v "$1" > /dev/null || missing+=("$2"); shift 2; done
  [ ${#missing[@]} -eq 0 ] && return
  [ "$(id -u)" = 0 ] || die "missing; install as root: apt-get install ${missing[*]}"
  say "installing ${missing[*]}"
  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } \
    > "$cache/install.log" 2>&1 < /dev/null || { tail -5 "$cache/install.log" >&2; die "apt-get install ${missing[*]} failed"; }
}

# A private apt state that knows bookworm (kernel) and trixie's sources (Bochs), at the mirror that
# this machine's own apt uses for Debian.
apt_setup() {
  [ -n "${apt_ready:-}" ] && return
  local mirror keyring signed=
  # (not security, not third parties: they carry neither package)
  mirror=$(apt-get indextargets --format '$(REPO_URI) $(ORIGIN) $(LABEL) $(COMPONENT)' 'Created-By: Packages' 2> /dev/null |
    awk '$2 == "Debian" && $3 == "Debian" && $4 == "main" {print $1; exit}')
  [ -n "$mirror" ] || # lists not fetched yet: read the sources themselves
    mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2> /dev/null |
      grep -v '^[[:space:]]*#' | grep -oE '[a-z+]+:/[^[:space:]]*/debian/?([[:space:]]|$)' | head -1 | tr -d '[:space:]')
  [ -n "$mirror" ] || die "no Debian mirror found in this machine's apt sources"
  keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  [ -e $keyring ] && signed="[signed-by=$keyring]"
  mkdir -p "$cache/apt/lists/partial" "$cache/apt/archives/partial"
  printf '%s\n' "deb $signed $mirror bookworm main" "deb-src $signed $mirror trixie main" > "$cache/apt/sources.list"
  apt_options=(-o "Dir::Etc::sourcelist=$cache/apt/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State=$cache/apt"
    -o "Dir::State::lists=$cache/apt/lists" -o Dir::State::status=/dev/null -o "Dir::Cache=$cache/apt"
    -o APT::Architecture=amd64 -o APT::Sandbox::User=root -o Acquire::Languages=none -o Acquire::Retries=3)
  say "reading package lists from $mirror"
  apt-get "${apt_options[@]}" update > "$cache/apt.log" 2>&1 < /dev/null || { tail -5 "$cache/apt.log" >&2
    die "apt-get update of bookworm + trixie failed at $mirror (is debian-archive-keyring current?)"; }
  apt_ready=1
}
download() { # download URI FILE HASH, both as printed by apt's --print-uris
  rm -f "$2"
  /usr/lib/apt/apt-helper "${apt_options[@]}" download-file "$1" "$2" "$3" > "$cache/apt.log" 2>&1 < /dev/null ||
    { tail -5 "$cache/apt.log" >&2; die "download of $1 failed"; }
}

build_bochs() {
  need g++ g++ make make patch patch xz xz-utils
  apt_setup
  # Only the upstream tarball is wanted; apt vouches for its hash. 3.0 is what bochs.patch fits.
  local uri file size hash
  read -r uri file size hash < <(apt-get "${apt_options[@]}" source --download-only --print-uris bochs 2> /dev/null |
    grep -E "bochs_3\.0[^ ]*\.orig\.tar\.[a-z0-9]+'" | tr -d "'") || die "trixie's bochs 3.0 source is not at the mirror"
  local work=$cache/build
  rm -rf "$work"; mkdir -p "$work"
  say "downloading $file"
  download "$uri" "$work/$file" "$hash"
  tar -xf "$work/$file" -C "$work" --strip-components=1
  (cd "$work" && patch -p1 --fuzz=0 -s < "$here/bochs.patch") || die "bochs.patch does not apply to $file"
  say "building Bochs with $jobs jobs (2.5 CPU minutes; log: $work/build.log)"
  (cd "$work" && CC=gcc CXX=g++ CFLAGS='-O2 -w' CXXFLAGS='-O2 -w -fno-strict-aliasing' ./configure --with-nogui --without-x \
     --enable-cpu-level=6 --enable-x86-64 --enable-avx --enable-evex --enable-amx --enable-all-optimizations \
     --disable-docbook --disable-cdrom --disable-xpm --disable-gameport && make -j"$jobs" bochs) \
    > "$work/build.log" 2>&1 < /dev/null || { tail -15 "$work/build.log" >&2; die "Bochs did not build"; }
  strip -o "$cache/bochs.new" "$work/bochs"
  mv -f "$cache/bochs.new" "$cache/bochs"
  rm -rf "$work"
}

get_kernel() {
  need xz xz-utils lz4 lz4 zstd zstd
  apt_setup
  local package uri file size hash work=$cache/kernel.tmp image at length
  package=$(apt-cache "${apt_options[@]}" depends linux-image-cloud-amd64 | awk '$1 == "Depends:" {print $2; exit}')
  [ -n "$package" ] || die "bookworm's linux-image-cloud-amd64 is not at the mirror"
  read -r uri file size hash < <(apt-get "${apt_options[@]}" download --print-uris "$package" 2> /dev/null | tr -d "'") ||
    die "no download address for $package"
  rm -rf "$work"; mkdir -p "$work"
  say "downloading $package ($((size / 1000000)) MB)"
  download "$uri" "$work/$file" "$hash"
  dpkg-deb --fsys-tarfile "$work/$file" | tar -x -C "$work" --wildcards './boot/vmlinuz-*'
  image=$(echo "$work"/boot/vmlinuz-*)
  # bzImage header (boot protocol): setup_sects at 0x1f1, payload_offset at 0x248, payload_length at 0x24c;
  # the payload ends with the 4-byte unpacked size.
  at=$((($(od -An -tu1 -j$((0x1f1)) -N1 "$image") + 1) * 512 + $(od -An -tu4 -j$((0x248)) -N4 "$image")))
  length=$(($(od -An -tu4 -j$((0x24c)) -N4 "$image") - 4))
  tail -c +$((at + 1)) "$image" | head -c "$length" > "$work/payload" || true
  case $(od -An -tx1 -N4 "$work/payload" | tr -d ' ') in
    02214c18) lz4 -dc < "$work/payload" ;;
    fd377a58) xz -dc --single-stream < "$work/payload" ;;
    28b52ffd) zstd -dc < "$work/payload" ;;
    1f8b*) gzip -dc < "$work/payload" ;;
    *) die "unknown compression of $image" ;;
  esac > "$work/vmlinux" || die "cannot unpack $image"
  "$cache/host" unpack "$work/vmlinux" "$work/kernel"
  mv -f "$work/kernel" "$work/kernel.addr" "$cache/"
  echo "$package" > "$cache/kernel.version"
  rm -rf "$work"
}

build_tools() {
  need g++ g++ gcc gcc ld binutils
  local work=$cache/tools.tmp
  rm -rf "$work"; mkdir -p "$work"
  gcc -c "$here/rom.S" -o "$work/rom.o" && ld -Ttext=0 --oformat binary -e 0 "$work/rom.o" -o "$work/rom.bin" ||
    die "cannot assemble rom.S"
  head -c 512 /dev/zero > "$work/vgarom.bin" # Bochs insists on one
  gcc -std=gnu11 -O2 -static "$here/init.c" -o "$work/init" || die "cannot compile init.c (static libc: package libc6-dev)"
  g++ -std=c++17 -O2 "$here/host.cpp" -o "$work/host" || die "cannot compile host.cpp"
  mv -f "$work"/{rom.bin,vgarom.bin,init,host} "$cache/"
  rm -rf "$work"
}

changed=
if ! done_already tools "$tools_stamp"; then build_tools; echo "$tools_stamp" > "$cache/tools.stamp"; changed=1; fi
if ! done_already bochs "$bochs_stamp"; then build_bochs; echo "$bochs_stamp" > "$cache/bochs.stamp"; changed=1; fi
if ! done_already kernel "$kernel_stamp"; then get_kernel; echo "$kernel_stamp" > "$cache/kernel.stamp"; changed=1; fi
rm -rf "$cache/apt"

if [ -n "$changed" ]; then # prove it: a static program must come back with its output and status
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  printf '%s\n' '#include <stdio.h>' 'int main(void) { puts("up"); return 42; }' > "$work/probe.c"
  gcc -O1 -static "$work/probe.c" -o "$work/probe"
  status=0
  "$cache/host" run "$cache" --timeout 60 -- "$work/probe" > "$work/out" 2> "$work/err" < /dev/null || status=$?
  [ $status = 42 ] && [ "$(cat "$work/out")" = up ] || { cat "$work/out" "$work/err" >&2; die "the emulator does not run a test program (status $status)"; }
fi
[ -z "$changed" ] && [ "${1:-}" = --quiet ] || say "ready in $cache (Bochs 3.0 patched, $(cat "$cache/kernel.version"))"
