"""Evaluation of a model, in three kinds never confused: central, federated and benchmark.

"central" scores the averaged lower segment on a test set at the server; "federated" each client's
pair of segments on its own test split; "benchmark" each client's pair on one public test set.
"""
