"""The nodes of a run: which are drawn, which have no data, how many there are."""
