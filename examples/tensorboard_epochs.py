#!/usr/bin/env python3
"""Epoch records to TensorBoard, as they come: a chart a column, a run a folder.

mltools finetune MODEL ROWS -o noisy | tee noisy-epochs.jsonl | python examples/tensorboard_epochs.py runs/noisy
tensorboard --logdir runs

Needs `pip install tensorboard`.
"""

import json
import sys

from torch.utils.tensorboard import SummaryWriter

with SummaryWriter(sys.argv[1]) as writer:
    for line in sys.stdin:
        record = json.loads(line)
        for column, value in record.items():
            if isinstance(value, float) or (column.endswith("accuracy") and value is not None):
                writer.add_scalar(column, value, record["epoch"])
        writer.flush()
