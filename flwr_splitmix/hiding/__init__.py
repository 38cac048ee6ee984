"""What hides a U-shaped client's hidden states and gradients: one file or folder a method."""
