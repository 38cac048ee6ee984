"""The commands about models and data: fetched by name, exported, and asked for predictions."""
