"""The run configuration: the folder and keys of an app, their overrides and their errors."""
