#!/usr/bin/env bash
# fuzz.sh ROOT: every fuzzer for ten minutes of a processor (FUZZ_SECONDS), two at a time. Skipped (77) without clang.
set -euo pipefail
cd "$1"
for tool in clang++ cmake ninja; do
  command -v "$tool" > /dev/null || { echo "skipped: $tool is not installed"; exit 77; }
done
echo 'int main() {}' | clang++ -x c++ -fsanitize=fuzzer-no-link,address -o /dev/null - 2> /dev/null ||
  { echo "skipped: clang has no sanitizers here; install libclang-rt-dev"; exit 77; }
cmake --preset fuzz > /dev/null
cmake --build build/fuzz -j 2 --target fuzzers
ls fuzz/corpus | xargs -P 2 -n 1 fuzz/run.sh build/fuzz "${FUZZ_SECONDS:-600}"
