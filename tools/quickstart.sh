#!/usr/bin/env bash
# Shows the model of the default recipe, then trains it. Arguments: the vitrum binary.
set -euo pipefail
vitrum=$1
recipe=recipes/fashion-mnist.toml
model=$(sed -n 's/^model *= *"\([^"]*\)".*/\1/p' "$recipe")

"$vitrum" summary "$model"
if [[ -e runs/quickstart ]]; then
  echo "runs/quickstart holds an earlier run and is kept; this one goes to a directory of its own"
  exec "$vitrum" train --recipe "$recipe"
fi
exec "$vitrum" train --recipe "$recipe" --out runs/quickstart
