"""Which nodes take part in a run: who is drawn, who has no data, how many there are."""
