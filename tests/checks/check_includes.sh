#!/usr/bin/env bash
# check_includes.sh ROOT: who may include whom (docs/architecture.md), how long a file and a function may be, and that
# kernels call their operands by name.
#   cli, c -> report, serve -> train, explain, export -> infer -> weights -> models, data, fetch, dist -> runtime -> graph, text -> core
# A file includes its own folder and lower ranks; weights also sees models, data also fetch. models sees graph and core only. Backends see core,
# runtime/backend.h, runtime/link.h (with communicator.h) and graph/op.h, and only the loader, runtime/backends.cpp, sees them.
# Slow-to-compile headers stay out of our headers, and in the folders that parse text.
set -euo pipefail
cd "$1"
mapfile -t files < <(find vitrum tests bench examples fuzz \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null | sort)
((${#files[@]} > 0)) || { echo "no sources below $1" >&2; exit 1; }

awk '
BEGIN {
  split("core 0 text 1 graph 1 runtime 2 models 3 weights 3 data 3 fetch 3 dist 3 infer 4 train 5 explain 5 export 5 report 6 serve 6 cli 7 c 7", pairs, " ")
  for (i = 1; i in pairs; i += 2) rank[pairs[i]] = pairs[i + 1]
  backend["reference"] = backend["cpu"] = backend["cuda"] = 1
  heavy = "^(nlohmann/json\\.hpp|toml\\+\\+/)"
  max_lines = 600
  max_function = 100
}
function complain(text) { printf "%s:%d: %s\n", FILENAME, FNR, text; bad = 1 }
function may_include(from, to, target) {
  if (from == to || to == "core") return 1
  if (from in backend) return target ~ /^vitrum\/(runtime\/(backend|link|communicator)|graph\/op)\.h$/
  if (to in backend) return FILENAME == "vitrum/runtime/backends.cpp"
  if (from == "models") return to == "graph"
  if (from == "weights" && to == "models") return 1  # a model directory holds a model
  if (from == "data" && to == "fetch") return 1  # images may be far away
  return rank[to] < rank[from]
}
# The header that stands outside of every folder is the C interface.
FNR == 1 { depth = split(FILENAME, path, "/"); ours = path[1] == "vitrum"; folder = depth == 2 ? "c" : path[2] }
FNR == 1 && ours && !(folder in rank) && !(folder in backend) { complain("unknown folder " folder) }
FNR == max_lines + 1 { complain("longer than " max_lines " lines") }
!ours { next }
# Functions, as clang-format leaves them: they open with a brace at the end of a line, and close with one below their first
# column. Kernels, too.
FNR == 1 { opened = 0; fresh = 1 }
opened { match($0, /^ */) }
opened && RLENGTH == indent && /^ *\}/ {
  if (FNR - opened >= max_function) complain("the function from line " opened " on is longer than " max_function " lines")
  opened = 0; fresh = 1
  next
}
!opened && (/^ *#/ || /^ *$/) { fresh = 1 }
!opened && !/^ *(\/\/|#)/ && !/^ *$/ {
  if (fresh) { match($0, /^ */); indent = RLENGTH; text = ""; first = FNR; fresh = 0 }
  text = text $0
  bare = $0
  sub(/ *\/\/.*/, "", bare)
  if (bare ~ /\{$/) {
    if (text ~ /\(/ && bare !~ /= *\{$/ && text !~ /^ *(\{|(if|for|while|switch|else|namespace|struct|class|union|enum|extern)[ (])/) opened = first
    fresh = 1
  } else if (bare ~ /[;}:]$/ || text ~ /^ *template <[^(){}]*>$/) {
    fresh = 1
  }
}
folder in backend && /(^|[^a-z_.])[a-z_]+\.(in|out)(\[[0-9]|, [0-9]+\))/ { complain("name the operand, as io.in[Linear::kBias]") }
/^[ \t]*#[ \t]*include[ \t]*["<]/ {
  match($0, /["<][^">]*/)
  target = substr($0, RSTART + 1, RLENGTH - 1)
  quoted = substr($0, RSTART, 1) == "\""
  split(target, part, "/")
  if (part[1] == "vitrum") {
    to = target == "vitrum/vitrum.h" ? "c" : part[2]
    if (!quoted) complain("write #include \"" target "\"")
    if (!(to in rank) && !(to in backend)) complain("includes " target ", of an unknown folder")
    else if (!may_include(folder, to, target)) complain(folder " may not include " target)
  } else if (quoted) {
    complain("write the path from the source root, not \"" target "\"")
  } else if (target ~ heavy) {
    if (FILENAME ~ /\.h$/) complain(target " does not belong in a header")
    else if (folder != "cli" && folder != "train" && folder != "weights" && folder != "infer" && folder != "data" && folder != "fetch" && folder != "serve" && folder != "text")
      complain(target " is only for cli, train, infer, weights, data, fetch, serve and text")
  }
}
END { exit bad }
' "${files[@]}"
echo "${#files[@]} files follow the rules"
