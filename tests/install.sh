#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Installs Debian packages that are missing, and says nothing when none is.
#   install.sh [COMMAND:]PACKAGE...    "ninja:ninja-build": the package is missing if there is no such command
set -euo pipefail
missing=()
for entry in "$@"; do
  case $entry in
    *:*) command -v "${entry%%:*}" > /dev/null || missing+=("${entry#*:}") ;;
    *) [ "$(dpkg-query --show --showformat '${db:Status-Status}' "$entry" 2> /dev/null)" = installed ] || missing+=("$entry") ;;
  esac
done
[ ${#missing[@]} -gt 0 ] || exit 0
[ "$(id -u)" = 0 ] || { echo "install.sh: ERROR: missing; as root: apt-get install ${missing[*]}" >&2; exit 1; }
echo "installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
{ apt-get update && apt-get install -y --no-install-recommends "${missing[@]}"; } > "$log" 2>&1 < /dev/null ||
  { tail -5 "$log" >&2; echo "install.sh: ERROR: apt-get install ${missing[*]} failed" >&2; exit 1; }
