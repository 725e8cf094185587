#!/usr/bin/env bash
# checks_test.sh CXX: the checkers beside this file do find what they look for.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0

# expect VERDICT NAME COMMAND...: VERDICT is pass or fail.
expect() {
  local verdict=$1 name=$2 found=pass
  shift 2
  "$@" >"$work/log" 2>&1 || found=fail
  if [[ $found != "$verdict" ]]; then
    echo "$name: expected $verdict, found $found"
    cat "$work/log"
    status=1
  fi
}

# one_file VERDICT PATH LINE: a tree with that one file, which has that one line.
one_file() {
  rm -rf "$work/tree"
  mkdir -p "$work/tree/$(dirname "$2")"
  printf '%s\n' "$3" >"$work/tree/$2"
  expect "$1" "$2: $3" "$here/check_includes.sh" "$work/tree"
}
one_file pass vitrum/graph/a.cpp '#include "vitrum/core/shape.h"'
one_file pass vitrum/runtime/backends.cpp '#include "vitrum/cpu/cpu.h"'
one_file pass vitrum/cpu/a.cpp '#include "vitrum/graph/op.h"'
one_file pass vitrum/cli/a.cpp '#include <CLI/CLI.hpp>'
one_file pass vitrum/train/a.cpp '#include "vitrum/models/vit.h"'
one_file pass tests/a_test.cpp '#include "vitrum/cpu/cpu.h"'
one_file fail vitrum/core/a.h '#include "vitrum/graph/graph.h"'
one_file fail vitrum/core/a.h '#  include <vitrum/core/shape.h>'
one_file fail vitrum/models/a.cpp '#include "vitrum/runtime/program.h"'
one_file fail vitrum/models/a.cpp '#include "vitrum/data/dataset.h"'
one_file fail vitrum/train/a.cpp '#include "vitrum/explain/map.h"'
one_file fail vitrum/runtime/program.cpp '#include "vitrum/cpu/cpu.h"'
one_file fail vitrum/cpu/simd/a.cpp '#include "vitrum/reference/norm.h"'
one_file fail vitrum/cpu/a.cpp '#include "vitrum/runtime/program.h"'
one_file fail vitrum/cli/a.h '#include <nlohmann/json.hpp>'
one_file fail vitrum/runtime/a.cpp '#include <toml++/toml.h>'
one_file fail vitrum/core/a.cpp '#include "shape.h"'
one_file fail vitrum/misc/a.cpp 'int x;'
one_file fail vitrum/core/long.cpp "$(seq 601)"
one_file pass vitrum/core/long.cpp "$(seq 600)"
one_file pass vitrum/cpu/a.cpp '  const TensorView x = io.in[Linear::kX], y = operand(io.out, Linear::kY);'
one_file fail vitrum/cpu/a.cpp '  const TensorView x = io.in[0];'
one_file fail vitrum/cuda/norm/a.cu '  const TensorView bias = operand(norm.in, 2);'
# body LINES: that many lines inside of a function or kernel.
body() { printf '  f();\n%.0s' $(seq "$1"); }
one_file pass vitrum/core/a.cpp "$(printf 'void g() {\n%s\n}' "$(body 98)")"
one_file fail vitrum/core/a.cpp "$(printf 'void g() {\n%s\n}' "$(body 99)")"
one_file fail vitrum/cuda/norm/a.cu "$(printf 'template <int N>\n__global__ void\n    g(int x) {\n%s\n}' "$(body 99)")"
one_file pass vitrum/core/a.cpp "$(printf 'const std::vector<int> k = {\n%s\n};' "$(body 120)")"

# The version that the binary and the CUDA library compare follows the headers between them.
abi_version() { cmake -DPROJECT_SOURCE_DIR="$work/abi" -P "$work/abi/print.cmake" 2>&1; }
mkdir -p "$work/abi/vitrum"
cp -r "$here/../../vitrum/"{core,dist,graph,runtime} "$work/abi/vitrum/"
printf 'include("%s/../../cmake/Abi.cmake")\nmessage("${VITRUM_ABI_VERSION}")\n' "$here" >"$work/abi/print.cmake"
before=$(abi_version)
expect pass "version of the interface: $before" grep -qxE '0x[0-9a-f]{7}' <<<"$before"
echo 'enum class More : int { kOne };' >>"$work/abi/vitrum/graph/op.h"
expect fail "version of the interface after op.h changed" test "$(abi_version)" = "$before"

echo 'inline int f() { return 1; } int (*g())() { return f; }' | "$1" -x c++ -c - -o "$work/weak.o"
echo 'static int f() { return 1; } int (*g())() { return f; }' | "$1" -x c++ -c - -o "$work/strong.o"
expect fail "inline function" "$here/check_weak_symbols.sh" "$work/strong.o" "$work/weak.o"
expect pass "static function" "$here/check_weak_symbols.sh" "$work/strong.o"
expect fail "no objects" "$here/check_weak_symbols.sh"
exit $status
