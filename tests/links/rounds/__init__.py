"""Whole rounds over links: real Ray hosts, real gRPC streams; `make test-runs` runs them."""
