"""Models: finding blocks, opening checkpoints, running parts, training."""
