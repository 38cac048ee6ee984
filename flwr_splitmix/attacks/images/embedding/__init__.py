"""The algebra of patch embeddings: patches behind tokens, sums of tokens, and noise."""
