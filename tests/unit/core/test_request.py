from __future__ import annotations

from octavo.core.block import SeqId
from octavo.core.prefix_key import KeyChain
from octavo.core.request import Sequence, Status
from support.core_runner import request


def test_a_sequence_knows_its_bounds_from_its_request() -> None:
    r = request(prompt=range(5), max_tokens=7, min_tokens=2, end_token_ids=(9,), stop_token_ids=(8,))
    sequence = Sequence(SeqId(1), r, 0, list(r.prompt_token_ids), KeyChain(b"", 4))
    assert (sequence.num_prompt_tokens, sequence.max_num_tokens, sequence.min_num_tokens) == (5, 12, 7)
    assert sequence.end_token_ids == {8, 9}
    assert sequence.status is Status.WAITING
    assert "sample 0, waiting" in repr(sequence)


def test_live_sequences_are_those_not_finished() -> None:
    r = request()
    for index in range(3):
        r.sequences.append(Sequence(SeqId(index), r, index, [1], KeyChain(b"", 4)))
    r.sequences[1].status = Status.FINISHED
    assert [sequence.index for sequence in r.live] == [0, 2]
