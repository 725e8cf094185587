#!/usr/bin/env bash
# coverage.sh [FILTER]: which lines of the readers the tests reach. Builds in build/coverage, runs the tests of readers and
# the fuzzers' corpus (or FILTER, of gtest), and prints lines reached for each reader, those below 95 % first.
set -euo pipefail
cd "$(dirname "$0")/../.."
filter=${1:-'*Hostile*:*FuzzCorpus*:Decode*:Orientation*:*Npy*:*Npz*:*Zip*:*Pickle*:*PyTorch*:*Safetensors*:*Sharded*:*Readers*:*HfConfig*:*ModelDir*:*Idx*:*Cifar*:*Csv*:*Folder*:*Data*:*Oddities*:*Download*:*Archive*:*Recipe*:*Metrics*:*Shard*:*Tar*:*Token*:*Bpe*:*SentencePiece*:*Unigram*:*Quantiz*:*OpenClip*:*TextTower*:*Mae*:*Multipart*:*Oip*:*Framing*:*Gate*:*Session*:*JsonBody*:*Serve*:*Json*:*Base64*:*Hub*:*Cache*:*Remote*:*Dialect*:*Original*:*Convert*'}
build=build/coverage
cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS="-O0 --coverage" -DVITRUM_PCH=OFF > /dev/null
cmake --build $build -j "${JOBS:-2}" --target vitrum_tests
find $build -name '*.gcda' -delete
$build/tests/vitrum_tests --gtest_filter="$filter" --gtest_brief=1 || echo "some tests failed: the figures are of what ran" >&2
readers='core/(base64|json_text|random_file|tar_header|text_limits) data/(cifar|csv|decode.*|folder|idx|optional_codecs|orientation|remote_shards|shard_.*|tar) text/(bpe|sentencepiece|tokenizer_json|tokenizers|unigram) weights/(bare_file|gathered|hf_config|json_keys|mae_decoder|model_config|npy|npy_header|npz|open_clip|open_tensors|pickle|pytorch|quantized_tensors|safetensors|sharded|tensor_source|text_tower|zip) fetch/(archive|digest|file_cache|hub|remote_place) serve/(framing|gate|http|json_body|multipart|oip)'
pattern=$(sed 's/ /|/g' <<< "$readers")
mkdir -p $build/gcov
(cd $build/gcov && find .. -path '*/vitrum.dir/*' -name '*.gcda' | grep -E "/vitrum/($pattern)\.cpp\.gcda" |
  xargs gcov -r -s "$OLDPWD" 2> /dev/null) |
  awk -v pattern="^vitrum/($pattern)\\\\.cpp$" '
    /^File / { split($0, part, "\047"); file = part[2] }
    /^Lines executed:/ && file ~ pattern {
      split($0, part, /[:% ]/)
      percent = part[3]; lines = $NF
      printf "%6.2f %% of %4d  %s\n", percent, lines, file | "sort -n"
      sum += percent * lines / 100; all += lines; file = ""
    }
    END { close("sort -n"); if (all) printf "%6.2f %% of %4d lines of readers\n", 100 * sum / all, all }'
