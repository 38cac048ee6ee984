"""The link of deployments: SuperNodes dial the ServerApp over gRPC."""
