"""The command `splitmix run`: its run is started, followed, and ended with a summary."""
