#!/usr/bin/env bash
# Known answers with sharp truth: which techniques find the one layer, or the two, that alone can have memorised?
#
#   examples/bench.sh ROWS PRETRAINED
#
# From a clean model, each layer alone (and each pair of PAIRS) is trained on the noisy labels until they are memorised:
# all else stays as it was, so the truth is sharp. Since nothing else differs, subtracting weights would find it; so
# CLEAN is also replaced by decoys, whose other layers (or head) are changed as much, by what holds no memory. All
# techniques are judged by `mltools score`; the table goes to stdout, as examples/bench_table.py makes it.
#
# In the environment: SEED, OUT (where every file stays, default: bench/), TASK (its name in the records), TEXT and
# MAX_LENGTH as the options, BATCH, EPOCHS and LR of the clean model, PLANT_EPOCHS and PLANT_LR of the plants, LAYERS
# (the single layers planted, default: all), PAIRS (default: the outermost layers; empty: none), DECOYS (default:
# "none random drift head"), TECHNIQUES (default: "swap attribute shapley inspect grads centroid"; "retrain", with
# RETRAIN_LR and RETRAIN_EPOCHS, takes long, "probe" needs noisy rows among each tenth of all rows).
# What is there already is left alone, so that the script can be stopped and started again.
set -euo pipefail

rows=$1 pretrained=$2
here=$(cd "$(dirname "$0")" && pwd)
out=${OUT:-bench}
seed=${SEED:-1}
task=${TASK:-$(basename "${rows%%.*}")}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
reading=(--text "${TEXT:-text}" --max-length "${MAX_LENGTH:-512}")
training=("${reading[@]}" --batch-size "${BATCH:-16}" --seed "$seed" --evaluate last)
noisy=$out/noisy.jsonl clean=$out/clean

mkdir -p "$out"
run() { printf '\n$ %s\n' "$*" >&2; "$@"; }
# Writes the output of a command to a file, once: once FILE COMMAND...
once() { [ -e "$1" ] || { run "${@:2}" > "$1.part" && mv "$1.part" "$1"; }; }
# Makes a folder by a command that ends with -o, once: folder DIR COMMAND... -o
folder() { [ -e "$1" ] || run "${@:2}" "$1" > "$1.log"; }
# The layers that are not in a list, as a list.
others() { seq "$layers" | grep -vxF "$(tr , '\n' <<< "$1")" | paste -sd, -; }

once "$noisy" mltools perturb --rate 0.15 --seed "$seed" "$rows"
folder "$clean" mltools finetune "$pretrained" "$noisy" --target original_label --epochs "${EPOCHS:-12}" \
  --lr "${LR:-3e-4}" "${training[@]}" -o
layers=$(mltools inspect "$clean" --json | grep -o '"layers":[0-9]*' | grep -o '[0-9]*')

for planted in ${LAYERS-$(seq "$layers")} ${PAIRS-1,$layers}; do
  plant=$out/plant-$planted
  folder "$plant" mltools finetune "$clean" "$noisy" --train "$planted" --raise-lr --epochs "${PLANT_EPOCHS:-30}" \
    --lr "${PLANT_LR:-1e-3}" "${training[@]}" --resume -o
  for decoy in ${DECOYS:-none random drift head}; do
    donor=$out/decoy-$planted-$decoy name=$out/$planted-$decoy
    case $decoy in
      none) donor=$clean ;;
      head) folder "$donor" mltools decoy "$clean" --like "$plant" --kind head --seed "$seed" -o ;;
      drift) folder "$donor" mltools decoy "$clean" --like "$plant" --layers "$(others "$planted")" --kind drift \
        --from "$pretrained" -o ;;
      *) folder "$donor" mltools decoy "$clean" --like "$plant" --layers "$(others "$planted")" --kind "$decoy" \
        --seed "$seed" -o ;;
    esac
    tags=(--tag dataset="$task" --tag seed="$seed" --tag planted="\"$planted\"" --tag decoy="$decoy")
    of=("$plant" "$donor" "$noisy" "${reading[@]}" "${tags[@]}")
    for technique in ${TECHNIQUES:-swap attribute shapley inspect grads centroid}; do
      case $technique-$decoy in
        swap-*)
          once "$name-truth.jsonl" mltools swap "${of[@]}" --tag sweep=truth --layers "$planted" \
            --layers "$(others "$planted")"
          once "$name-swap.jsonl" mltools swap "${of[@]}" ;;
        attribute-* | shapley-*) once "$name-$technique.jsonl" mltools "$technique" "${of[@]}" ;;
        inspect-*) once "$name-inspect.jsonl" mltools inspect "$plant" "$donor" --json "${tags[@]}" ;;
        # What follows looks at no CLEAN, so decoys make no difference.
        grads-none) once "$name-grads.jsonl" mltools grads "$plant" "$noisy" "${reading[@]}" "${tags[@]}" ;;
        centroid-none)
          once "$name-centroid.jsonl" mltools centroid "$plant" "$noisy" --events "${reading[@]}" "${tags[@]}" ;;
        retrain-none)
          once "$name-retrain.jsonl" mltools retrain "$plant" "$pretrained" "$noisy" "${reading[@]}" "${tags[@]}" \
            --seed "$seed" --lr "${RETRAIN_LR:-3e-5}" --epochs "${RETRAIN_EPOCHS:-5}" --batch-size "${BATCH:-16}" ;;
        probe-none)
          once "$name-probe.jsonl" mltools probe "$plant" "$noisy" "${reading[@]}" "${tags[@]}" --allow-absent ;;
      esac
    done
  done
done

python "$here/bench_table.py" "$out"
