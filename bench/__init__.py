"""Benchmarks: how soon a committed transaction can be read from the bucket, and what that costs.

`python -m bench.rpo` is the command, docs/benchmarks.md what came out. No part of the product;
the servers are those of `lab`.
"""
