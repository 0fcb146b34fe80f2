"""What records add up to: layer scores, centre of gravity, correlation, known answers. Pure functions, no torch."""
