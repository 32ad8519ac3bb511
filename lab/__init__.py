"""Throwaway real servers for the demo, the tests and the benchmarks; no part of the product.

`get` obtains the programs, `mysql` and `s3` run them, `proxy` stands between, `load` writes,
`verify` compares.

Law: everything listens on 127.0.0.1, lives in a directory it was given, and is gone when its `with`
block ends, also when the process that started it is killed.
"""
