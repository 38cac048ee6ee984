"""A Flower App that times the stream link on SuperNodes; `benchmarks.deploy` runs it."""
