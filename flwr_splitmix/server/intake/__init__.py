"""What arrives from clients, checked before it touches a model."""
