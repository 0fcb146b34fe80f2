"""The endings that names of files have, by what is in them."""

PARQUET = (".parquet",)
RECORDS = (".jsonl", ".ndjson", ".jsonl.gz", ".jsonl.zst", ".ndjson.gz", ".ndjson.zst", ".csv", *PARQUET)
TENSORS = (".safetensors",)
FIGURES = (".pdf", ".png", ".svg")
PAGES = (".html", ".htm")
