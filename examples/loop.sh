#!/usr/bin/env bash
# A shell loop over windows: one call and one record a window. (One call without --layers does all of them with less
# work, since windows share most of it; a loop is for a few, or for other machines.)
#
#   examples/loop.sh NOISY CLEAN ROWS LAYERS > swap.jsonl
set -euo pipefail

noisy=$1 clean=$2 rows=$3 layers=$4

for window in $(mltools windows "$layers"); do
  mltools swap "$noisy" "$clean" "$rows" --layers "$window" --quiet
done
