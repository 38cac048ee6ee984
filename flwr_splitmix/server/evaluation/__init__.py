"""Evaluation of a model, always labelled as central, federated or benchmark.

"central" scores the averaged lower segment on a test set at the server; "federated" scores each
client's pair of segments on its own test split; "benchmark", each pair on one public test set.
"""
