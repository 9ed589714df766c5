"""What several methods share: small functions and party halves, each used by composition.

Nothing in here is a method by itself, and nothing knows a network or a disk.
"""
