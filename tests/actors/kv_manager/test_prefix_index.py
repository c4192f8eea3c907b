"""Names of contents, and the index by salt."""

from itertools import product

from pillion.actors.kv_manager.prefix_index import Node, PrefixIndex, block_hash, root_hash
from pillion.messages.codec import pack_ids


def chain(adapter: str, *blocks: int) -> bytes:
    name = root_hash(adapter)
    for token_id in blocks:
        name = block_hash(name, pack_ids([token_id] * 8))
    return name


def test_every_history_has_a_name_of_its_own() -> None:
    histories = [
        blocks for length in range(4) for blocks in product((0, 1, 2**31 - 1), repeat=length)
    ]
    names = {chain(adapter, *blocks) for adapter in ("", "a") for blocks in histories}
    assert len(names) == 2 * len(histories)
    assert {len(name) for name in names} == {16}


def test_names_do_not_change_with_the_process() -> None:
    # A tier that outlives the process is found by them.
    assert chain("", 1, 2).hex() == "d49f13d4c8c20c3f61e1d753b7abcaa0"


def test_a_content_is_known_as_long_as_one_salt_has_it() -> None:
    index = PrefixIndex()
    name = chain("", 1)
    nodes = [Node(salt, name, None, block_id) for block_id, salt in enumerate(("", "s"))]
    for node in nodes:
        index.insert(node)
    assert (len(index), index.nodes_of("s")[name]) == (2, nodes[1])
    index.remove(nodes[1])
    assert name not in index.nodes_of("s")
    assert index.has_under_any_salt(name)
    index.remove(nodes[0])
    assert not index.has_under_any_salt(name)
    assert (len(index), index.all_nodes()) == (0, [])


def test_looking_does_not_make_room_for_a_salt() -> None:
    index = PrefixIndex()
    for number in range(100):
        assert not index.nodes_of(f"salt {number}")
    assert index.all_nodes() == []
