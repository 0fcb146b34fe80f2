#!/usr/bin/env bash
# The whole experiment as a chain of Slurm jobs; each starts when what it needs has ended well.
#
#   examples/slurm/chain.sh PRETRAINED NOISY.JSONL FOLDER [SHARDS]
#
# perturb has written NOISY.JSONL. FOLDER gets the checkpoints, records and, at the end, summary.jsonl and
# agreement.jsonl. FINETUNE and RETRAIN hold options of the trainings, SBATCH those of every job (a partition, a GPU).
set -euo pipefail

pretrained=$1 rows=$2 folder=$3 shards=${4:-8}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$folder/log"
common=(--parsable --output "$folder/log/%x-%j.txt" --open-mode append)
# shellcheck disable=SC2206
common+=(${SBATCH:-})

job() { # NAME AFTER COMMAND: submit a command line that waits for jobs, and print its number
  sbatch "${common[@]}" --job-name "$1" ${2:+--dependency="afterok:$2"} --wrap "$3"
}

noisy=$(job noisy "" "mltools finetune $pretrained $rows -o $folder/noisy --resume ${FINETUNE:-} > $folder/noisy.jsonl")
clean=$(job clean "" "mltools finetune $pretrained $rows -o $folder/clean --target original_label --resume \
${FINETUNE:-} > $folder/clean.jsonl")
swap=$(sbatch "${common[@]}" --array "1-$shards" --dependency "afterok:$noisy:$clean" \
  "$here/sweep.sh" "$folder/swap" swap "$folder/noisy" "$folder/clean" "$rows")
# shellcheck disable=SC2086
retrain=$(sbatch "${common[@]}" --array "1-$shards" --dependency "afterok:$noisy" \
  "$here/sweep.sh" "$folder/retrain" retrain "$folder/noisy" "$pretrained" "$rows" ${RETRAIN:-})
grads=$(job grads "$noisy" "mltools grads $folder/noisy $rows --force -o $folder/grads.jsonl")
states=$(job states "$noisy" "mltools states $folder/noisy $rows --force -o $folder/states.safetensors")
probe=$(job probe "$states" "mltools probe $folder/states.safetensors --allow-absent --force -o $folder/probe.jsonl")
centroid=$(job centroid "$states" "mltools centroid $folder/states.safetensors --force -o $folder/centroid.jsonl")
merge=$(job merge "$swap:$retrain" "for tool in swap retrain; do \
mltools merge $folder/\$tool/*.jsonl --force -o $folder/\$tool.jsonl || exit; done")
layers="$folder/swap.jsonl $folder/retrain.jsonl $folder/grads.jsonl"
job summary "$merge:$grads:$probe:$centroid" "mltools mcog $layers $folder/probe.jsonl --force -o $folder/summary.jsonl
mltools mcog --by-layer $layers | mltools correlate --value score --on layer --force -o $folder/agreement.jsonl"
