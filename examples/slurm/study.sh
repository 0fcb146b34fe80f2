#!/usr/bin/env bash
#SBATCH --job-name=study
#SBATCH --array=1-144
#SBATCH --cpus-per-task=4
#SBATCH --time=12:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
# One experiment a task, over tasks x models x seeds: noise, two trainings, swap. 12 x 4 x 3 are the paper's.
#
#   sbatch examples/slurm/study.sh FOLDER "rte.jsonl mrpc.jsonl ..." "model/a model/b ..." "1 2 3"
#   mltools mcog --by dataset,model FOLDER/*/swap.jsonl
#
# OPTIONS holds those of the trainings. What is there already is not made again; a training goes on where it was.
set -euo pipefail

folder=$1
read -ra tasks <<< "$2"
read -ra models <<< "$3"
read -ra seeds <<< "$4"
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}

i=$((SLURM_ARRAY_TASK_ID - 1))
((i < ${#tasks[@]} * ${#models[@]} * ${#seeds[@]})) || exit 0
task=${tasks[i % ${#tasks[@]}]} model=${models[i / ${#tasks[@]} % ${#models[@]}]}
seed=${seeds[i / ${#tasks[@]} / ${#models[@]}]}
dataset=$(basename "${task%%.*}")
here=$folder/$dataset-$(basename "$model")-$seed
mkdir -p "$here"

[ -e "$here/noisy.jsonl" ] || mltools perturb "$task" --seed "$seed" --quiet -o "$here/noisy.jsonl"
for target in label original_label; do
  # shellcheck disable=SC2086
  mltools finetune "$model" "$here/noisy.jsonl" --target "$target" --seed "$seed" --resume --quiet ${OPTIONS:-} \
    -o "$here/$target" > "$here/$target.jsonl"
done
[ -e "$here/swap.jsonl" ] || mltools swap "$here/label" "$here/original_label" "$here/noisy.jsonl" --quiet \
  --tag "dataset=$dataset" --tag "model=$(basename "$model")" --tag "seed=$seed" \
  --out "$here/swap.jsonl" --resume "$here/swap.jsonl.partial"
