#!/usr/bin/env bash
# All windows over several processes with xargs, one thread each. Records are appended whole: writers never mix.
#
#   examples/xargs.sh NOISY PRETRAINED ROWS LAYERS RECORDS [PROCESSES]
#
# A call that was stopped goes on where it was: windows that are in RECORDS are left out.
set -euo pipefail

noisy=$1 pretrained=$2 rows=$3 layers=$4 records=$5 processes=${6:-2}
export OMP_NUM_THREADS=1

touch "$records"
mltools windows "$layers" |
  xargs -P "$processes" -I{} sh -c 'mltools retrain "$@" --layers {} >> "$0"' \
    "$records" "$noisy" "$pretrained" "$rows" --quiet --resume "$records" ${OPTIONS:-}
