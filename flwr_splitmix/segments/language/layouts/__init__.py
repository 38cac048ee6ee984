"""The layouts of transformers models: one file per family, and which model has which."""
