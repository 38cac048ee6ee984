"""The intake: checks of everything that clients send, before it reaches a model."""
