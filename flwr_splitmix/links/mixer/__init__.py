"""The link through a third party's mixer, which both the nodes and the ServerApp dial."""
