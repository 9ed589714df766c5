"""Alignment: which sample is at which party."""
