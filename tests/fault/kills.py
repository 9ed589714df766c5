"""Kills of hub and party while organisations join, align, predict and renew, one after the other.

Each kind goes through all of its work: the process that was killed is started again and is killed
a little later, until it gets to the end. How much later is drawn from a seed, at most ``stride``
moments. A moment is something that crosses a link (``die``) or a write to a file (``torn``).
"""

from __future__ import annotations

import datetime
import random
import shutil
import signal
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from colonnade.federate.admission import Admission
from colonnade.federate.certificates import load_certificate, now, serial_of
from colonnade.federate.federation_directory import FederationDirectory, FederationSettings
from colonnade.federate.identities import is_renewal_due, save_identity
from colonnade.federate.invitations import invite
from colonnade.federate.own_account import open_account
from colonnade.federate.party_home import (
    PartySettings,
    make_home,
    own_identity,
    read_party,
    write_party,
)
from colonnade.federate.party_policy import read_policy
from colonnade.protect.ledger import verify_ledger
from colonnade.protect.people_sums import Held
from colonnade.run.storage import read_json
from e2e.organisations import HOLDER, PARTIES, Nursery, Organisations, Process, free_port
from federations import assert_bitwise_equal
from membership import SetClock, make_member
from networks import QUICK

SECONDS = 120
KILLED = -signal.SIGKILL
# A redo may align again, which a party counts.
PATIENT = "[align]\nmax_alignments = 1000\n"
PERTURB = 'protect = [{ kind = "perturb", noise = 4.0 }]'

How = Literal["die", "torn"]


def drawn(draw: random.Random, stride: int) -> Iterator[int]:
    """Moments to die at: later each time, by a step that is drawn; the first is an early one.

    No work has fewer moments than that.
    """
    at = draw.randint(1, min(stride, 6))
    while True:
        yield at
        at += draw.randint(1, stride)


class Membership:
    """A federation, and a telco that joins it or renews its identity."""

    def __init__(self, root: Path, nursery: Nursery) -> None:
        self.root, self._nursery = root, nursery
        self.federation, self.home = root / "federation", root / "telco"
        self.data = root / "telco.csv"
        self._processes: list[Process] = []
        root.mkdir(parents=True)
        self.data.write_text("id,calls\nc1,2\nc2,3\n")
        self._settings = FederationSettings(
            name=HOLDER,
            address=f"127.0.0.1:{free_port()}",
            enrolment=f"127.0.0.1:{free_port()}",
        )

    def begin_enrolment(self) -> None:
        """A new federation, and an invitation."""
        self._clear()
        made = FederationDirectory.create(self.federation, self._settings)
        invite(made, "telco", self.root / "telco.invitation")

    def begin_renewal(self) -> None:
        """A new federation whose member joined so long ago that its identity is to be renewed."""
        self._clear()
        past = SetClock(now().replace(microsecond=0) - datetime.timedelta(days=70))
        made = FederationDirectory.create(self.federation, self._settings, now=past)
        make_home(self.home)
        save_identity(self.home, make_member(made, "telco"))
        settings = PartySettings(
            name="telco",
            label_holder=HOLDER,
            hub=self._settings.address,
            data=self.data,
            id="id",
            link=QUICK,
        )
        write_party(self.home, settings)

    def _clear(self) -> None:
        for place in (self.federation, self.home):
            shutil.rmtree(place, ignore_errors=True)
        for file in self.root.glob("*.inv*"):
            file.unlink()

    def start_hub(self, torn: int | None = None) -> Process:
        """The hub, once it listens or is dead."""
        log = self.root / "hub.log"
        log.write_text("")
        hub = self._start("certify", self.federation, log=log, torn=torn)
        pause = threading.Event()
        while "listening" not in log.read_text() and hub.wait(0) is None:
            pause.wait(0.01)
        return hub

    def start_party(self, what: str, torn: int | None = None) -> Process:
        given = [self.root / "telco.invitation", self.data] if what == "join" else []
        return self._start(what, *given, self.home, log=self.root / "telco.log", torn=torn)

    def _start(self, role: str, *places: Path, log: Path, torn: int | None) -> Process:
        words = [role, *map(str, places), f"clock={self.root / 'clock'}"]
        words += [] if torn is None else [f"torn={torn}"]
        log.touch()
        process = self._nursery.start(words, log)
        self._processes.append(process)
        return process

    def check(self) -> None:
        """The telco has the one identity that the hub knows; nothing half done is left."""
        identity = own_identity(self.home)
        assert Admission(self.federation)(identity.certificate) == "telco"
        register = FederationDirectory(self.federation).register.read()
        assert register.members.keys() == {"telco"}
        serial = serial_of(load_certificate(identity.certificate, "telco"))
        # Once it is used, the one before is good for nothing.
        assert register.members["telco"].serial == serial
        assert not is_renewal_due(identity.certificate, now())
        assert not list(self.home.glob("*.key.pem")), list(self.home.iterdir())
        assert verify_ledger(self.federation / "audit")[1] is None

    def logs(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in self.root.glob("*.log"))

    def close(self) -> None:
        for process in self._processes:
            process.kill()


def kill_members(membership: Membership, what: str, who: str, moments: Iterator[int]) -> int:
    """Kill hub or party in every enrolment ('join') or renewal ('renew'); how often."""
    num_killed = 0
    while True:
        if what == "join":
            membership.begin_enrolment()
        else:
            membership.begin_renewal()
        at = next(moments)
        hub = membership.start_hub(at if who == "hub" else None)
        party = membership.start_party(what, at if who == "party" else None)
        code = party.wait(SECONDS)
        killed = party if who == "party" else hub
        is_over = killed.wait(0) != KILLED
        if is_over:
            assert code == 0, membership.logs()
        else:
            num_killed += 1
            # A party whose hub died is told so, and nothing else.
            assert code == KILLED if who == "party" else code in (0, 1), membership.logs()
            hub = membership.start_hub() if who == "hub" else hub
            # What is done already may be left as it is.
            if what == "join" or is_renewal_due(own_identity(membership.home).certificate, now()):
                code = membership.start_party(what).wait(SECONDS)
                assert code == 0, membership.logs()
            elif (membership.home / "renewing.key.pem").exists():
                assert membership.start_party(what).wait(SECONDS) == 1
        hub.kill()
        membership.check()
        if is_over:
            return num_killed


def held_by(organisations: Organisations, name: str = "telco") -> Held:
    """What a party's account amounts to."""
    home = organisations.home(name)
    settings = read_party(home)
    account = open_account(home, settings, read_policy(settings.policy))
    held = account.held()
    account.close()
    return held


def num_alignments(organisations: Organisations) -> int:
    """How many alignments the telco has counted."""
    path = organisations.home("telco") / "alignments.json"
    return len(read_json(path)["days"]) if path.exists() else 0


def repeatedly(
    organisations: Organisations,
    who: str,
    how: How,
    moments: Iterator[int],
    *,
    start_hub: Callable[..., Process],
    goes_on: Callable[[], bool],
    look: Callable[[], None],
) -> int:
    """Kill one of the processes again and again while the work goes on; how often."""
    num_killed = 0

    def moment(name: str) -> Mapping[str, int]:
        return {how: next(moments)} if name == who and goes_on() else {}

    running = {name: organisations.start_party(name, **moment(name)) for name in PARTIES}
    hub = start_hub(**moment("hub"))
    until = SECONDS * 10
    while (code := hub.wait(0.1)) != 0:
        until -= 1
        assert until, organisations.logs()
        look()
        if code is not None:
            # Nobody but who was killed has failed, unless a party was killed too often in a row.
            assert code == KILLED or "times in a row" in organisations.logs(), organisations.logs()
            num_killed += code == KILLED
            hub, until = start_hub(**moment("hub")), SECONDS * 10
        for name, process in running.items():
            if (ended := process.wait(0)) is not None:
                assert ended == KILLED, organisations.logs()
                num_killed += 1
                running[name] = organisations.start_party(name, **moment(name))
                until = SECONDS * 10
    for process in running.values():
        process.kill()
    return num_killed


def kill_alignments(
    organisations: Organisations, who: str, how: How, moments: Iterator[int]
) -> int:
    """Kill until the alignment is there; then train to the end. How often."""
    most = [0]

    def look() -> None:
        count = num_alignments(organisations)
        assert count >= most[0], "a count of alignments was lowered"
        most[0] = count

    num_killed = repeatedly(
        organisations,
        who,
        how,
        moments,
        start_hub=organisations.start_hub,
        goes_on=lambda: not (organisations.run / "alignment.json").exists(),
        look=look,
    )
    assert organisations.exchanges() == list(range(1, organisations.exchanges()[-1] + 1))
    local, summary = organisations.in_process()
    assert_bitwise_equal(organisations.weights(), local)
    assert read_json(organisations.run / "summary.json")["quality"] == summary["quality"]
    return num_killed


def kill_predictions(
    organisations: Organisations, who: str, how: How, moments: Iterator[int]
) -> int:
    """Kill until the file of answers is there; an undisturbed prediction changes nothing."""
    before = held_by(organisations)
    least = [before.quantiles]
    table = pd.read_csv(organisations.root / f"{HOLDER}.csv")
    # Other samples each time, so that something new leaves.
    ids = organisations.root / f"{who}-{how}.csv"
    draw = zlib.crc32(ids.name.encode())
    table[["id"]].sample(frac=0.6, random_state=draw).to_csv(ids, index=False)
    out = organisations.root / f"answers-{ids.name}"

    def look() -> None:
        quantiles = held_by(organisations).quantiles
        for name, ranks in quantiles.items():
            # The least may be somebody new.
            assert ranks[-1] >= least[0][name][-1], "an account was lowered"
        least[0] = quantiles

    def predict(**moments: int) -> Process:
        return organisations.start_prediction(ids, out, **moments)

    num_killed = repeatedly(
        organisations,
        who,
        how,
        moments,
        start_hub=predict,
        goes_on=lambda: not out.exists(),
        look=look,
    )
    answers, held = out.read_bytes(), held_by(organisations)
    assert held.num_charges > before.num_charges
    repeatedly(
        organisations,
        "nobody",
        how,
        moments,
        start_hub=predict,
        goes_on=lambda: False,
        look=look,
    )
    assert out.read_bytes() == answers
    # The same values with the same noise: nothing new left, whatever was killed.
    assert held_by(organisations) == held
    run = (organisations.run / "run_name").read_text()
    for name in PARTIES:
        assert verify_ledger(organisations.home(name) / "runs" / run)[1] is None
    return num_killed


def each_kind() -> Iterator[tuple[str, How]]:
    """Who is killed, and when."""
    yield from (("hub", "die"), ("telco", "die"), ("hub", "torn"), ("telco", "torn"))


def run_kills(root: Path, nursery: Nursery, *, seed: int, stride: int) -> dict[str, Any]:
    """All kinds; how often each was killed."""
    draw = random.Random(seed)
    outcome: dict[str, dict[str, int]] = {}
    membership = Membership(root / "membership", nursery)
    for what, kind in (("join", "enrolment"), ("renew", "renewal")):
        for who in ("hub", "party"):
            count = kill_members(membership, what, who, drawn(draw, stride))
            outcome.setdefault(kind, {})[f"kill {who}"] = count
    membership.close()
    for number, (who, how) in enumerate(each_kind()):
        organisations = Organisations(
            root / f"alignment {number}", nursery, policies=dict.fromkeys(PARTIES, PATIENT)
        )
        count = kill_alignments(organisations, who, how, drawn(draw, stride))
        outcome.setdefault("alignment", {})[f"{how} {who}"] = count
        organisations.close()
    organisations = Organisations(
        root / "prediction", nursery, protect=PERTURB, policies=dict.fromkeys(PARTIES, PATIENT)
    )
    for name in PARTIES:
        organisations.start_party(name)
    assert organisations.start_hub().wait(SECONDS) == 0, organisations.logs()
    organisations.close()
    for who, how in each_kind():
        count = kill_predictions(organisations, who, how, drawn(draw, stride))
        outcome.setdefault("prediction", {})[f"{how} {who}"] = count
    organisations.close()
    assert all(all(counts.values()) for counts in outcome.values()), outcome
    total = sum(sum(counts.values()) for counts in outcome.values())
    return {**outcome, "num_killed": total, "stride": stride}
