"""The privacy matrix: methods and defences as rows, attacks and adversaries as columns.

It is in this room because it trains victims; attacks, views and scores are in `attacks`.
"""
