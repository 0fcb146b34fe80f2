"""The endings that names of files have, by what is in them."""

PARQUET = (".parquet",)
RECORDS = (".jsonl", ".ndjson", *PARQUET)
TENSORS = (".safetensors",)
PACKERS = {".gz": "gzip", ".zst": "zstd"}
FIGURES = (".pdf", ".png", ".svg")
