"""What both apps share for the U shape: checks of keys, advice on cuts, the cost of noise."""
