#!/usr/bin/env bash
# The known answer (§3.2): plant the memorisation in two layers, then see which techniques find them.
#
#   examples/control.sh ROWS PRETRAINED AUX
#
# ROWS: JSONL with text and label. AUX: rows of another task, which change every layer. PRETRAINED: a folder or hub id.
# Three placements of two layers (lowest, middle, highest); for each, the main task changes these layers only, and the
# classifier: a pooler could memorise too, so it stays as it was. Stops at a model that did not memorise. For each
# placement, stderr says what swapping only the planted layers and only the others undoes: the truth is as sharp as
# these two differ.
#
# In the environment: TEXT and AUX_TEXT (text columns), EPOCHS, LR, AUX_LR, RETRAIN_EPOCHS, RETRAIN_LR, BATCH,
# MAX_LENGTH, SEED, OUT (where every file stays, default: control/), TASK (its name in the records, default: the name
# of ROWS), ALLOW_ABSENT (if set, rows may be too few for noisy ones in every part of the probes' splits),
# MIN_NOISY_ACCURACY (what counts as memorised, default: .9).
# Every training is a work item of its own and is left alone if it is there already; so the script can be stopped
# and started again.
set -euo pipefail

rows=$1 pretrained=$2 aux=$3
out=${OUT:-control}
seed=${SEED:-1}
task=${TASK:-$(basename "${rows%%.*}")}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
reading=(--text "${TEXT:-text}" --max-length "${MAX_LENGTH:-512}")
training=("${reading[@]}" --aux "$aux" --aux-text "${AUX_TEXT:-text}" --aux-lr "${AUX_LR:-5e-6}"
  --epochs "${EPOCHS:-50}" --lr "${LR:-1e-5}" --batch-size "${BATCH:-8}" --seed "$seed" --resume)

mkdir -p "$out"
step() { printf '\n$ %s\n' "$*" >&2; }
run() { step "$@"; "$@"; }

[ -e "$out/noisy.jsonl" ] || run mltools perturb --rate 0.15 --seed "$seed" "$rows" -o "$out/noisy.jsonl"

layers=$(mltools inspect "$pretrained" --json | grep -o '"layers":[0-9]*' | grep -o '[0-9]*')
middle=$((layers / 2))
placements=("1-2" "$middle-$((middle + 1))" "$((layers - 1))-$layers")

# The layers that are not in a placement, as a layer list.
others() { { span 1 $((${1%-*} - 1)) && span $((${1#*-} + 1)) "$layers"; } | paste -sd, -; }
span() { if (($1 < $2)); then echo "$1-$2"; elif (($1 == $2)); then echo "$1"; fi; }

# A number of a record: value NAME < RECORD
value() { grep -o "\"$1\":[^,}]*" | cut -d: -f2; }

# Stops unless a training ended with its noisy rows known: memorised MODEL, whose records are in MODEL-epochs.jsonl.
memorised() {
  local reached
  reached=$(tail -n 1 "$1-epochs.jsonl" | value noisy_accuracy)
  awk -v reached="$reached" -v least="${MIN_NOISY_ACCURACY:-.9}" 'BEGIN { exit !(reached + 0 >= least + 0) }' || {
    echo "$0: $1 did not memorise: noisy accuracy $reached, ${MIN_NOISY_ACCURACY:-.9} is needed;" \
      "raise EPOCHS or LR, with another OUT" >&2
    exit 1
  }
}

# What swapping some layers alone undoes: undone LAYERS < RECORDS
undone() {
  local record
  record=$(grep -F "\"window\":\"$1\"")
  echo "reverts $(value reverted <<< "$record") of the noisy rows (memorisation error" \
    "$(value memorisation_error <<< "$record"))"
}

# No layer changed by the main task: what gradients are divided by, and layer 1's baseline for probes.
frozen=$out/frozen
run mltools finetune "$pretrained" "$out/noisy.jsonl" -o "$frozen" --freeze all-layers,pooler --evaluate last \
  "${training[@]}" > "$out/frozen-epochs.jsonl"
run mltools states "$frozen" "$out/noisy.jsonl" "${reading[@]}" -o "$frozen.safetensors" --force

for planted in "${placements[@]}"; do
  model=$out/$planted
  for target in label original_label; do
    run mltools finetune "$pretrained" "$out/noisy.jsonl" -o "$model-$target" --target "$target" \
      --freeze "embeddings,pooler,$(others "$planted")" --raise-lr "${training[@]}" > "$model-$target-epochs.jsonl"
    memorised "$model-$target"
  done
  noisy=$model-label clean=$model-original_label
  just_memorised=$noisy/memorised
  [ -e "$just_memorised" ] || just_memorised=$noisy
  tags=(--tag dataset="$task" --tag planted="$planted" --tag seed="$seed")
  touch "$model-retrain.jsonl"
  run mltools swap "$noisy" "$clean" "$out/noisy.jsonl" "${reading[@]}" "${tags[@]}" > "$model-swap.jsonl"
  run mltools swap "$noisy" "$clean" "$out/noisy.jsonl" "${reading[@]}" "${tags[@]}" --layers "$planted" \
    --layers "$(others "$planted")" > "$model-truth.jsonl"
  echo "planted $planted: swapping these layers alone $(undone "$planted" < "$model-truth.jsonl")," \
    "the others alone $(undone "$(others "$planted")" < "$model-truth.jsonl")" >&2
  run mltools retrain "$noisy" "$pretrained" "$out/noisy.jsonl" "${reading[@]}" "${tags[@]}" --seed "$seed" \
    --lr "${RETRAIN_LR:-3e-5}" --epochs "${RETRAIN_EPOCHS:-5}" --batch-size "${BATCH:-8}" \
    --resume "$model-retrain.jsonl" >> "$model-retrain.jsonl"
  run mltools grads "$just_memorised" "$out/noisy.jsonl" --frozen "$frozen" "${reading[@]}" "${tags[@]}" \
    > "$model-grads.jsonl"
  run mltools states "$noisy" "$out/noisy.jsonl" "${reading[@]}" -o "$model.safetensors" --force
  run mltools probe "$model.safetensors" --baseline "$frozen.safetensors" ${ALLOW_ABSENT:+--allow-absent} \
    "${tags[@]}" > "$model-probe.jsonl"
done

records=()
for planted in "${placements[@]}"; do
  for tool in swap retrain grads probe; do records+=("$out/$planted-$tool.jsonl"); done
done
run mltools score "${records[@]}" --truth planted | tee "$out/score.jsonl"
