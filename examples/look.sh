#!/usr/bin/env bash
# A look at a checkpoint, wherever it is from: what it is, how far it is from another one, and where they differ.
#
#   examples/look.sh CHECKPOINT [OTHER]
set -euo pipefail

checkpoint=$1 other=${2:-}

mltools inspect "$checkpoint"
if [ -n "$other" ]; then
  mltools inspect "$checkpoint" "$other"
  printf '\nlayers, those that moved most first:\n'
  mltools inspect "$checkpoint" "$other" --json |
    jq -r 'select(.layer != null and .layer > 0) | [.distance, .layer] | @tsv' | sort -gr | head -3
fi
