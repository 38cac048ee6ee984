"""The link for deployments: SuperNodes dial the ServerApp over gRPC."""
