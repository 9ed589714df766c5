"""Methods by name. To add one: its file here, one line below, its docs page, its experiment."""

from __future__ import annotations

from collections.abc import Mapping

from colonnade.core.method import Method
from colonnade.methods.aggvfl import AggVFL
from colonnade.methods.alone import Alone
from colonnade.methods.asynchronous import Asynchronous
from colonnade.methods.centralized import Centralized
from colonnade.methods.combinatorial import Combinatorial
from colonnade.methods.cvfl import CVFL
from colonnade.methods.easter import Easter
from colonnade.methods.ensemble import Ensemble
from colonnade.methods.fedbcd import FedBCD
from colonnade.methods.flex import PBCD, AdaptiveFlex, Flex, SyncVFL
from colonnade.methods.laser import Laser
from colonnade.methods.local import Local
from colonnade.methods.plug import Plug
from colonnade.methods.splitnn import SplitNN
from colonnade.methods.standard import Standard
from colonnade.methods.vafl import VAFL
from colonnade.methods.vfedtrans import VFedTrans

__all__ = ["METHODS"]

METHODS: Mapping[str, type[Method]] = {
    method.info.name: method
    for method in (
        SplitNN,
        FedBCD,
        CVFL,
        Asynchronous,
        VAFL,
        PBCD,
        SyncVFL,
        Flex,
        AdaptiveFlex,
        Laser,
        Local,
        Standard,
        Ensemble,
        Combinatorial,
        Plug,
        VFedTrans,
        Easter,
        AggVFL,
        Alone,
        Centralized,
    )
}
