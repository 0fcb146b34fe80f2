"""Models: finding blocks, opening checkpoints, running parts, training."""

import os

# Before the libraries that read these are imported: no bars, no telemetry, no warnings about forks.
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
