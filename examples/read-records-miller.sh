#!/usr/bin/env bash
# Records in Miller, a line at a time: the mean error of the windows of each width, for each tool, as a table.
#
#   examples/read-records-miller.sh RECORDS...
set -euo pipefail

mlr --ijsonl --opprint stats1 -a mean,count -f memorisation_error -g tool,width then sort -f tool -nr width "$@"
