"""The commands about an app before it runs: `splitmix new` and `splitmix check`."""
