"""What crosses the stream as bytes: tensors as safetensors, plain values as JSON."""
