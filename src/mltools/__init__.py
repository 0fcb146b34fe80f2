"""Find out in which layers a fine-tuned transformer memorises mislabelled examples.

After Dankers & Titov (2024), "Generalisation First, Memorisation Second?". Each command of the
`mltools` program has a typed function of the same name in `mltools.tools`.
"""

__version__ = "0.1.0"
