"""One attack, run: what is asked of it, the case, its guesses, their scores."""
