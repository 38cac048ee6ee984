"""What gradients and received labels say of the labels of images."""
