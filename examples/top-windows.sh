#!/usr/bin/env bash
# The K windows that undo most memorisation, narrow ones first among equals: records again, in constant memory.
#
#   mltools swap NOISY CLEAN ROWS | examples/top-windows.sh K
#   examples/top-windows.sh 3 < swap.jsonl | jq -r .window |     # and retrain those
#     xargs -I{} mltools retrain NOISY PRETRAINED ROWS --layers {}
set -euo pipefail

jq -c -n --argjson k "${1:-5}" '
  reduce inputs as $record ([]; . + [$record] | sort_by(-.memorisation_error, .width, .start) | .[:$k]) | .[]'
