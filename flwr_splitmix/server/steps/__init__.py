"""The steps of a round: exchanges over the link, the server's learning, gradients back."""
