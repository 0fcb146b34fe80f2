"""One module per command, each with a typed function of the command's name."""
