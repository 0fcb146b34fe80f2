#!/usr/bin/env bash
# Records are JSON lines: jq reads them. Prints the five windows that undo most memorisation, narrow ones first.
#
#   examples/read-records.sh RECORDS...
set -euo pipefail

jq -rs 'map(select(.memorisation_error != null)) | sort_by(-.memorisation_error, .width) | .[:5][] |
  [.tool, .window, .memorisation_error, .clean_accuracy] | @tsv' "$@"
