#!/usr/bin/env bash
# build_deb.sh [CUDA]: Debian packages of this tree in build/deb, checked by lintian; with CUDA also vitrum-cuda.
# VITRUM_COMPILER_LAUNCHER=ccache compiles through a cache, WERROR=1 makes warnings errors.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
version=$(tools/version.sh)
work=$root/build/deb tree=$root/build/deb/vitrum-$version
rm -rf "$work"
mkdir -p "$tree"

# A tree of its own, without what is built and what git does not know.
if git rev-parse --git-dir >/dev/null 2>&1; then git ls-files -z; else find . -path ./build -prune -o -type f -print0; fi |
  tar -c --null --files-from=- | tar -x -C "$tree"
cp -r packaging/debian "$tree/debian"

# One version and one list of changes: the project's.
date=$(sed -n "s/^## \[$version\] - //p" CHANGELOG.md)
SOURCE_DATE_EPOCH=$(date -u -d "$date" +%s)
export SOURCE_DATE_EPOCH
cat >"$tree/debian/changelog" <<END
vitrum ($version) unstable; urgency=medium

  * Release $version; /usr/share/doc/vitrum/changelog.gz has what is new.

 -- $(sed -n 's/^Maintainer: //p' packaging/debian/control)  $(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")
END

profiles=noudeb
if [[ ${1:-} == CUDA ]]; then profiles=pkg.vitrum.cuda; fi
export DEB_BUILD_OPTIONS="parallel=${JOBS:-$(nproc)} noautodbgsym ${DEB_BUILD_OPTIONS:-}"
(cd "$tree" && dpkg-buildpackage --build=binary --no-sign --build-profiles="$profiles" >"$work/build.log" 2>&1) ||
  { tail -40 "$work/build.log" >&2; exit 1; }
root_flag=$( ((EUID != 0)) || echo --allow-root)
lintian $root_flag --fail-on warning "$work"/*.changes
ls -l "$work"/*.deb
