"""The apps that `splitmix new` writes: in a checkout, links to `apps/` and `examples/`."""
