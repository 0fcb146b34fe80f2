"""The commands: one module or package each, named as the command. Adding one touches nothing else."""
