"""Parts of the client of the U shape: head and tail, exchanges, evaluation, checks of texts."""
