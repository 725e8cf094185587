#!/usr/bin/env bash
# run.sh BUILD_DIR CXX [FLAGS]: installs, moves the prefix, then builds and runs the consumer beside this file
# against it, once with find_package and once with pkg-config.
set -euo pipefail
build=$1 cxx=$2 flags=${3:-}
here=$(cd "$(dirname "$0")" && pwd)
work=$build/install_test
rm -rf "$work"
mkdir -p "$work"
cmake --install "$build" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$work/prefix"

# The consumer includes what is promised, and what is nobody's but ours is not there.
listed=$(grep -o 'vitrum/[a-z_/]*\.h' "$here/../../cmake/PublicHeaders.cmake" | sort)
used=$(grep -o '"vitrum/[a-z_/]*\.h"' "$here/main.cpp" | tr -d '"' | sort)
[[ $listed == "$used" ]] || { echo "main.cpp and cmake/PublicHeaders.cmake differ" >&2; exit 1; }
[[ ! -e $work/prefix/include/vitrum/weights/family.h && ! -e $work/prefix/include/vitrum/cpu ]] ||
  { echo "internal headers are installed" >&2; exit 1; }

cmake -G Ninja -S "$here" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_CXX_FLAGS="$flags"
cmake --build "$work/consumer"
"$work/consumer/consumer"

export PKG_CONFIG_PATH=$work/prefix/lib/pkgconfig
read -ra options < <(pkg-config --cflags --libs --static vitrum)
"$cxx" $flags "$here/main.cpp" -o "$work/consumer-pc" "${options[@]}" -Wl,-rpath,"$work/prefix/lib"
"$work/consumer-pc"

if [[ -e $work/prefix/bin/vitrum ]]; then "$work/prefix/bin/vitrum" --help >"$work/help.txt"; fi
