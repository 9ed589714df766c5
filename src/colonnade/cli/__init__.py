"""The command line: a thin layer over the other packages, a module per command.

A command imports its packages when it runs: PyTorch and pandas take seconds to load, and help or a
mistyped option must not wait for them.
"""
