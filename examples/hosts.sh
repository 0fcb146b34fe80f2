#!/usr/bin/env bash
# The shards of a sweep over hosts, by GNU parallel and ssh; files are copied there, records come back.
#
#   examples/hosts.sh HOSTS SHARDS FOLDER swap noisy clean noisy.jsonl [OPTIONS]
#   mltools merge FOLDER/*.jsonl > swap.jsonl
#
# HOSTS is a file with an ssh login a line; each host has mltools, ssh and rsync. The three inputs are paths below this
# folder. A shard whose host goes down is tried again, on another host; called again, the script does what is missing.
set -euo pipefail

hosts=$1 shards=$2 folder=$3 tool=$4 noisy=$5 other=$6 rows=$7
shift 7
mkdir -p "$folder"

seq "$shards" | while read -r i; do
  [ -e "$folder/$i-of-$shards.jsonl" ] || echo "$i"
done | parallel --sshloginfile "$hosts" --jobs 1 --retries 5 --timeout "${TIMEOUT:-86400}" --workdir "${WORKDIR:-mltools-work}" --cleanup \
  --basefile "$noisy" --basefile "$other" --basefile "$rows" --return "$folder/{}-of-$shards.jsonl" \
  "mkdir -p $folder && mltools $tool $noisy $other $rows $* --shard {}/$shards --quiet --out $folder/{}-of-$shards.jsonl"

# parallel takes a shard for done whose records did not come back because its host went down meanwhile
left=$(seq "$shards" | while read -r i; do [ -e "$folder/$i-of-$shards.jsonl" ] || echo "$i"; done | wc -l)
[ "$left" -eq 0 ] || { echo "$left of $shards shards are not back: call again" >&2; exit 1; }
