#!/usr/bin/env bash
# All windows of retrain with GNU parallel: a job log, and a second call runs only what is missing or failed.
#
#   examples/parallel.sh NOISY PRETRAINED ROWS LAYERS FOLDER
#
# For several hosts add --sshlogin host1,host2 --workdir . (same paths on all of them).
set -euo pipefail

noisy=$1 pretrained=$2 rows=$3 layers=$4 folder=$5
export OMP_NUM_THREADS=1

mkdir -p "$folder"
mltools windows "$layers" |
  parallel --jobs "${JOBS:-2}" --joblog "$folder/jobs.log" --resume-failed \
    mltools retrain "$noisy" "$pretrained" "$rows" --layers {} ${OPTIONS:-} --quiet --force --out "$folder/{}.jsonl"
cat "$folder"/*.jsonl
