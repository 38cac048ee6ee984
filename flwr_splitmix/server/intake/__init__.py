"""The intake: what arrives from clients, checked before it touches a model."""
