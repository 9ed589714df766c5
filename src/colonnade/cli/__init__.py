"""The command line: thin, over what the other packages do.

A command imports what it works with when it runs: PyTorch and tables take seconds to load, and help
or a mistyped option is not to wait for them.
"""
