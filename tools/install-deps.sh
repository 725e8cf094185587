#!/usr/bin/env bash
# install-deps.sh [LIST...]: installs the packages of packages.txt, or of those lists, that are missing; does nothing, quickly, when
# none is.
set -euo pipefail
if (($# == 0)); then set -- "$(dirname "$0")/../packages.txt"; fi
mapfile -t wanted < <(sed 's/#.*//; s/[[:space:]]//g; /^$/d' "$@")

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "deps: no apt on this system; install the equivalents of packages.txt by hand (going on without)" >&2
  exit 0
fi

# is_there a|b: any of them is installed. dpkg-query fails where it does not know one of them.
is_there() {
  grep -qx installed < <(dpkg-query -W -f '${db:Status-Status}\n' ${1//|/ } 2>/dev/null)
}
missing=()
for package in "${wanted[@]}"; do
  is_there "$package" || missing+=("$package")
done

if ((${#missing[@]} == 0)); then
  echo "deps: all ${#wanted[@]} packages are installed"
  exit 0
fi

echo "deps: installing ${missing[*]}"
as_root=()
if ((EUID != 0)); then
  if ! command -v sudo >/dev/null; then
    echo "deps: not root and no sudo here; as root, run: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
"${apt[@]}" update
chosen=()
for package in "${missing[@]}"; do
  for alternative in ${package//|/ }; do
    if [[ $package != *"|"* ]] || apt-cache show "$alternative" >/dev/null 2>&1; then
      chosen+=("$alternative")
      break
    fi
  done
done
"${apt[@]}" install -y --no-install-recommends "${chosen[@]}"
