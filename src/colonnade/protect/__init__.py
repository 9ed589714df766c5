"""What is done to an embedding before it leaves its party, and the record of what left.

Protections by kind (``PROTECTIONS``), chained in the order in which a party's settings list them.
Blinding, perturbation and accounting need ``colonnade[protect]``; ledger, policy and compression
need nothing.
"""

from colonnade.protect.specs import (
    PROTECTIONS,
    Blind,
    Budget,
    Fixed,
    Perturb,
    ProtectionSpec,
    Quantize,
    RandomK,
    TopK,
)

__all__ = [
    "PROTECTIONS",
    "Blind",
    "Budget",
    "Fixed",
    "Perturb",
    "ProtectionSpec",
    "Quantize",
    "RandomK",
    "TopK",
]
