"""The client of the L shape: its lower segment, its steps and its uploads."""
