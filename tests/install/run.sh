#!/usr/bin/env bash
# run.sh BUILD_DIR CC CXX [FLAGS]: installs, moves the prefix, then builds and runs the consumers beside this file
# against it (C++, C and C++98; shared and static), once with find_package and once with pkg-config.
set -euo pipefail
build=$1 cc=$2 cxx=$3 flags=${4:-}
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
  -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags"
cmake --build "$work/consumer"
"$work/consumer/consumer"
for program in consumer{,98}_vitrum_c{,_static}; do "$work/consumer/$program"; done
[[ -z $(ldd "$work/consumer/consumer_vitrum_c_static" | grep libvitrum_c) ]] ||
  { echo "the static consumer needs the shared library" >&2; exit 1; }

export PKG_CONFIG_PATH=$work/prefix/lib/pkgconfig
read -ra options < <(pkg-config --cflags --libs --static vitrum)
"$cxx" $flags "$here/main.cpp" -o "$work/consumer-pc" "${options[@]}" -Wl,-rpath,"$work/prefix/lib"
"$work/consumer-pc"

read -ra options < <(pkg-config --cflags --libs vitrum_c)
"$cc" $flags -std=c99 -Wall -Werror "$here/main.c" -o "$work/c-pc" "${options[@]}" -Wl,-rpath,"$work/prefix/lib"
"$work/c-pc"
read -ra options < <(pkg-config --cflags --libs --static vitrum_c | sed 's/-lvitrum_c/-l:libvitrum_c.a/')
"$cc" $flags -std=c99 -Wall -Werror "$here/main.c" -o "$work/c-pc-static" "${options[@]}"
"$work/c-pc-static"

if [[ -e $work/prefix/bin/vitrum ]]; then "$work/prefix/bin/vitrum" --help >"$work/help.txt"; fi
