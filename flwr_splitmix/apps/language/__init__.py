"""From a run configuration to a language model that is fine-tuned in three parts."""
