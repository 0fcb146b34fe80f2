"""Pure functions on numbers: no torch, no files, no records."""
