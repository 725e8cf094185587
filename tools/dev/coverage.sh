#!/usr/bin/env bash
# coverage.sh [FILTER]: which lines of the readers the tests reach. Builds in build/coverage, runs the tests of readers and
# the fuzzers' corpus (or FILTER, of gtest), and prints lines reached for each reader, those below 95 % first.
set -euo pipefail
cd "$(dirname "$0")/../.."
filter=${1:-'*Hostile*:*Files*:*FuzzCorpus*:Decode*:*Crop*:Orientation*:*Npy*:*Npz*:*Zip*:*Pickle*:*PyTorch*:*Safetensors*:*Sharded*:*Readers*:*HfConfig*:*ModelDir*:*Idx*:*Cifar*:*Csv*:*Folder*:*Data*:*Oddities*:*Download*:*Archive*:*Recipe*:*Metrics*:*Shard*:*Tar*:*Token*:*Bpe*:*SentencePiece*:*Unigram*:*Quantiz*:*OpenClip*:*TextTower*:*Mae*:*Multipart*:*Oip*:*Framing*:*Gate*:*Session*:*JsonBody*:*Serve*:*Json*:*Base64*:*Hub*:*Cache*:*Remote*:*Dialect*:*Original*:*Convert*:*Checkpoint*:*Resume*:*Predictions*:*Skip*:*Teacher*:*Distill*:*Text*:Clip*:BareFile*:Pretrain*:*Words*:Report*:*Check*-*FullDisk*'}
readers='core/(base64|files|json_text|random_file|tar_header|text_limits) data/(cifar|class_numbers|csv|decode.*|folder|idx|optional_codecs|orientation|remote_shards|shard_.*|tar) text/(bpe|sentencepiece|tokenizer_json|tokenizers|unigram) weights/(bare_file|gathered|hf_config|json_keys|mae_decoder|model_config|npy|npy_header|npz|open_clip|open_tensors|pickle|pytorch|quantized_tensors|safetensors|sharded|tensor_source|text_tower|zip) fetch/(archive|digest|file_cache|hub|remote_place) train/(checkpoint|metrics_log|predictions|recipe|skipped|teacher_logits) serve/(framing|gate|http|json_body|multipart|oip)'
pattern=$(sed 's/ /|/g' <<< "$readers")
build=build/coverage
# Only the readers are compiled to be counted; all else is that of any other release build, so a compiler cache has it.
mkdir -p $build
find vitrum -name '*.cpp' | { grep -E "^vitrum/($pattern)\.cpp$" || true; } | sort > $build/readers.txt
cat > $build/counted.cmake << 'END'
file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/readers.txt" readers)
# At the end, behind what CMakeLists.txt sets for some of them.
cmake_language(DEFER CALL set_source_files_properties ${readers} PROPERTIES COMPILE_OPTIONS "-O0;--coverage")
END
cmake --preset release -B $build -DVITRUM_PCH=OFF -DVITRUM_CUDA=OFF -DCMAKE_PROJECT_vitrum_INCLUDE="$PWD/$build/counted.cmake" \
  -DCMAKE_EXE_LINKER_FLAGS="--coverage -Wl,-u,__gcov_dump" -DCMAKE_SHARED_LINKER_FLAGS=--coverage > /dev/null
cmake --build $build -j "${JOBS:-2}" --target vitrum_tests
find $build -name '*.gcda' -delete
$build/tests/vitrum_tests --gtest_filter="$filter" --gtest_brief=1 || echo "some tests failed: the figures are of what ran" >&2
mkdir -p $build/gcov
(cd $build/gcov && find .. -path '*/vitrum*.dir/*' -name '*.gcda' | grep -E "/vitrum/($pattern)\.cpp\.gcda" |
  xargs gcov -r -s "$OLDPWD" 2> /dev/null) |
  awk -v pattern="^vitrum/($pattern)\\\\.cpp$" '
    /^File / { split($0, part, "\047"); file = part[2]; sub(/^(\.\.\/)+/, "", file) }
    /^Lines executed:/ && file ~ pattern {
      split($0, part, /[:% ]/)
      percent = part[3]; lines = $NF
      printf "%6.2f %% of %4d  %s\n", percent, lines, file | "sort -n"
      sum += percent * lines / 100; all += lines; file = ""
    }
    END { close("sort -n"); if (all) printf "%6.2f %% of %4d lines of readers\n", 100 * sum / all, all }'
