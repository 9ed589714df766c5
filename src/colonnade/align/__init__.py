"""Alignment: which sample is at which party.

``plain`` joins ids in the open, in one process. ``matching`` is private: ids are blinded and
compared, and every participant gets its own rows and the presence table.
"""
