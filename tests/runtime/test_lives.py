"""Which messages of a peer count."""

from pillion.messages.control import Drain, PeerRestarted
from pillion.messages.requests import AbortRequest
from pillion.runtime.lives import Lives


def abort(epoch: int) -> AbortRequest:
    return AbortRequest(epoch=epoch, sequence_ids=[1], reason="abort")


def test_a_life_begins_once_with_its_first_sign() -> None:
    lives = Lives()
    assert lives.begun_by(abort(1)) is None
    assert lives.begun_by(abort(3)) == "detokenizer"
    assert lives.begun_by(PeerRestarted(actor="detokenizer", epoch=3)) is None
    assert lives["detokenizer"] == 3
    assert lives["scheduler"] == 1


def test_what_an_earlier_life_said_is_stale() -> None:
    lives = Lives({"detokenizer": 2})
    assert lives.is_stale(abort(1))
    assert not lives.is_stale(abort(2))
    assert not lives.is_stale(abort(3))
    assert not lives.is_stale(Drain(deadline_ns=0))


def test_an_epoch_may_be_known_from_somebody_else() -> None:
    lives = Lives()
    assert lives.adopt("gpu_worker", 2)
    assert not lives.adopt("gpu_worker", 2)
    assert not lives.adopt("gpu_worker", 1)
    assert lives["gpu_worker"] == 2
