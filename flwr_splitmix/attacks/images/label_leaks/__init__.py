"""The information in gradients and received labels about the labels of images."""
