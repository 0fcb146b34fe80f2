#!/usr/bin/env bash
# Use an installed mltools as people do: help, completions, man pages, and the demo with one epoch.
#
#   scripts/smoke.sh ENVIRONMENT
#
# ENVIRONMENT: a virtual environment with the wheel and the demo's model, and no extras.
set -euo pipefail

environment=$(cd "$1" && pwd)
source=$(cd "$(dirname "$0")/.." && pwd)
export PATH="$environment/bin:$PATH" HF_HUB_OFFLINE=1
unset PYTHONPATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

mltools --version
case $(python -c 'import mltools; print(mltools.__file__)') in
  "$environment"/*) ;;
  *) echo "smoke: mltools is not the one installed in $environment" >&2; exit 1 ;;
esac

commands=$(mltools help | sed -n '/^[A-Z].*:$/,$s/^  \([a-z]\{2,\}\)  .*/\1/p')
[ "$(wc -w <<< "$commands")" -ge 15 ] || { echo "smoke: too few commands in help: $commands" >&2; exit 1; }
for command in $commands; do
  mltools "$command" --help > help
  grep -q "^Usage: mltools $command" help
  test -s "$environment/share/man/man1/mltools-$command.1"
done
test -s "$environment/share/man/man1/mltools.1"

mltools completion bash > completion.bash
bash -n completion.bash
for shell in bash zsh fish; do mltools completion "$shell" > "completion.$shell"; done
cmp completion.bash "$environment/share/bash-completion/completions/mltools"
cmp completion.zsh "$environment/share/zsh/site-functions/_mltools"
cmp completion.fish "$environment/share/fish/vendor_completions.d/mltools.fish"

EPOCHS=1 OUT=demo "$source/examples/quickstart.sh" > demo.txt
grep -q '"tool": *"swap"' demo.txt
test -s demo/swap.jsonl
echo "smoke: $(wc -w <<< "$commands" | tr -d ' ') commands, 3 completions, man pages and the demo work"
