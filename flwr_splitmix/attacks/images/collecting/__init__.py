"""Several releases of one image: which they are, and what they reveal together."""
