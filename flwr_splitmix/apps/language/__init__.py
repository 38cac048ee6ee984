"""The language app: fine-tuning of a language model in three parts, by a run configuration."""
