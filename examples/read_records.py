#!/usr/bin/env python3
"""Records in polars: the mean memorisation error by width of window, for each tool.

python examples/read_records.py RECORDS...      .jsonl or .parquet
"""

import sys

import polars as pl


def read(path: str) -> pl.DataFrame:
    """Read a file of records."""
    return pl.read_parquet(path) if path.endswith(".parquet") else pl.read_ndjson(path, infer_schema_length=None)


def by_width(records: pl.DataFrame) -> pl.DataFrame:
    """Average the memorisation error over the windows of each width."""
    return records.group_by("tool", "width").agg(pl.col("memorisation_error").mean()).sort("tool", "width")


if __name__ == "__main__":
    frames = [read(path) for path in sys.argv[1:]]
    sys.stdout.write(by_width(pl.concat(frames, how="diagonal_relaxed")).write_csv())
