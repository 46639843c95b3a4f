"""Other people's compilers: backends for our graphs, and our pipeline as theirs.

The only package that may name `torch._dynamo` and `torch._inductor`, and it does so only when such
a backend was asked for.
"""
