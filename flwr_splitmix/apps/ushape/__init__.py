"""The U shape's common parts of both apps: checks of keys, advice on cuts, cost of noise."""
