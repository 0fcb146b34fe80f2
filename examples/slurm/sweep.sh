#!/usr/bin/env bash
#SBATCH --job-name=mltools
#SBATCH --array=1-8
#SBATCH --cpus-per-task=4
#SBATCH --time=02:00:00
#SBATCH --signal=B:TERM@60
#SBATCH --requeue
#SBATCH --open-mode=append
# A sweep over an array of shards (not of windows: a start costs more than a window).
#
#   sbatch examples/slurm/sweep.sh FOLDER swap noisy/ clean/ noisy.jsonl [OPTIONS]
#   mltools merge FOLDER/*.jsonl > swap.jsonl       # when all are done; says what is missing
#
# A task that is started again, by Slurm after a preemption or by itself when its time is over, goes on from the
# records it has finished. TIME_LEFT lies below --time by more than one window takes.
set -euo pipefail

folder=$1 tool=$2
shift 2
part=$folder/$SLURM_ARRAY_TASK_ID-of-$SLURM_ARRAY_TASK_COUNT.jsonl
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}

mkdir -p "$folder"
[ -e "$part" ] && exit 0
child=
trap '[ -z "$child" ] || kill -TERM "$child"' TERM
mltools "$tool" "$@" --shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" --time-left "${TIME_LEFT:-1h45m}" --quiet \
  --out "$part" --resume "$part.partial" &
child=$!
status=0
wait "$child" || status=$?
while kill -0 "$child" 2> /dev/null; do
  status=0
  wait "$child" || status=$?
done
case $status in
  75 | 143) scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID" ;;
esac
exit "$status"
