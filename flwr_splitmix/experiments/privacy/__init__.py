"""The privacy matrix: methods and defences as rows, attacks and adversaries as columns.

It trains victims, and is therefore among the experiments; attacks, views and scores are in
`attacks`.
"""
