"""What a run warns of: clients that differ, plans that mix nothing, weights that do not train."""
