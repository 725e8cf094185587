#!/usr/bin/env bash
# run.sh BUILD SECONDS [TARGET...]: each fuzzer for so long, from the committed corpus, with its dictionary; findings stay in
# BUILD/findings, what it learns in BUILD/corpus.
set -euo pipefail
build=$1 seconds=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
# Some are fuzzed through real files.
[[ ! -d /dev/shm ]] || export TMPDIR=/dev/shm
export LSAN_OPTIONS="suppressions=$here/lsan.supp:print_suppressions=0"
targets=("$@")
((${#targets[@]} > 0)) || targets=($(ls "$here/corpus"))
for target in "${targets[@]}"; do
  mkdir -p "$build/corpus/$target" "$build/findings"
  echo "fuzz $target: $seconds s"
  "$build/fuzz/fuzz_$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 \
    -dict="$here/dict/$target.dict" -artifact_prefix="$build/findings/$target-" \
    "$build/corpus/$target" "$here/corpus/$target" 2> "$build/findings/$target.log" ||
    { tail -40 "$build/findings/$target.log"; echo "fuzz $target: a finding in $build/findings" >&2; exit 1; }
  grep -aE "^stat::(number_of_executed_units|peak_rss_mb)|cov: " "$build/findings/$target.log" | tail -3
done
echo "make fuzz: nothing found"
