"""A Flower App without flwr-splitmix, two messages a step; `benchmarks.deploy` runs it."""
