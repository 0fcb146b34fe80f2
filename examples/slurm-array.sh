#!/usr/bin/env bash
#SBATCH --job-name=retrain
#SBATCH --array=1-78
#SBATCH --cpus-per-task=4
#SBATCH --time=02:00:00
#SBATCH --signal=TERM@60
# One window a Slurm array task; 78 windows are those of 12 layers.
#
#   sbatch examples/slurm-array.sh NOISY PRETRAINED ROWS LAYERS FOLDER
#
# A task that is submitted again and has its records does nothing. Afterwards: cat FOLDER/*.jsonl > retrain.jsonl
set -euo pipefail

noisy=$1 pretrained=$2 rows=$3 layers=$4 folder=$5
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}

window=$(mltools windows "$layers" | sed -n "${SLURM_ARRAY_TASK_ID}p")
records=$folder/$window.jsonl
[ -s "$records" ] && exit 0

mkdir -p "$folder"
mltools retrain "$noisy" "$pretrained" "$rows" --layers "$window" ${OPTIONS:-} --quiet --force --out "$records"
