#!/usr/bin/env bash
# tools/check/run.sh [NAME...]: runs the checks that bring their own data, or those named (swin for check_swin.py), and says
# which failed. The others want real weights or photos (--help says which): augment, explain, finetune, lora, photos.
set -uo pipefail
cd "$(dirname "$0")/../.."
names=("$@")
((${#names[@]})) || names=(docs readers codecs pillow live dialects deit swin resnet families conv_families originals tokenizers zero_shot naflex mae onnx quantize report serve)
failed=()
for name in "${names[@]}"; do
  echo "== $name"
  tools/python.sh "tools/check/check_$name.py" || failed+=("$name")
done
if ((${#failed[@]})); then
  echo "checks that failed: ${failed[*]}"
  exit 1
fi
echo "all ${#names[@]} checks passed"
