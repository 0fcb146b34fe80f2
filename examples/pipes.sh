#!/usr/bin/env bash
# One sweep, read three times while it runs, through named pipes: no file is written but the one that is asked for.
#
#   examples/pipes.sh NOISY CLEAN ROWS RECORDS
#
# Keeps the records in RECORDS, prints the heat map, then the centre of gravity. ROWS may be a named pipe too.
set -euo pipefail

noisy=$1 clean=$2 rows=$3 records=$4
pipes=$(mktemp -d)
trap 'rm -rf "$pipes"' EXIT
mkfifo "$pipes/heat" "$pipes/cog"

mltools swap "$noisy" "$clean" "$rows" --quiet | tee "$records" "$pipes/heat" > "$pipes/cog" &
sweep=$!
mltools mcog "$pipes/cog" --quiet > "$pipes/answer" &
cog=$!
mltools plot heatmap "$pipes/heat" --quiet
wait "$sweep"
wait "$cog"
cat "$pipes/answer"
