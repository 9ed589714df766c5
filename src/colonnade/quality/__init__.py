"""How good a federation is: by party, by observed set, and how sure its answers may be."""
