"""The byte format of the stream: tensors as safetensors, plain values as JSON."""
