"""What makes equal tokens different, and the names pages have outside."""

import itertools
from hashlib import sha256

import pytest

from octavo import Adapter, CrossInput, IdentityError, LengthError, Media, Salt
from octavo.cache.identity import NO_EXTRAS, page_digest, read_extras, root_digest


def test_extras_are_sorted_by_where_they_apply():
    """Salt, adapter and cross input hold for the whole sequence, media by position."""
    late, early = Media("b", 5, 6), Media("a", 1, 3)
    cross = CrossInput("c", 7)
    found = read_extras([late, cross, Adapter("x", 2), early, Salt("s")])

    assert (Salt("s"), Adapter("x", 2), cross) == found.root
    assert (early, late) == found.media
    assert cross == found.cross


def test_the_order_of_extras_does_not_matter():
    """Any order gives the same identity."""
    extras = [Salt("s"), Adapter("x"), Media("a", 1, 3), Media("b", 4, 6)]
    found = {read_extras(order) for order in itertools.permutations(extras)}

    assert 1 == len(found)


@pytest.mark.parametrize("nothing", [(), [], iter(())])
def test_no_extras(nothing):
    """Nothing is one identity."""
    assert NO_EXTRAS == read_extras(nothing)


def test_one_extra_needs_no_list():
    """A single Salt, Adapter, Media or CrossInput may stand alone."""
    for extra in (Salt("s"), Adapter("a"), Media("m", 0, 1), CrossInput("c", 1)):
        assert read_extras([extra]) == read_extras(extra)


def test_a_cross_input_may_be_a_pair():
    """(digest, length) beside the extras is the same as a CrossInput among them."""
    assert read_extras([CrossInput("c", 3)]) == read_extras((), ("c", 3))


@pytest.mark.parametrize(
    ("start", "stop", "key"),
    [
        (0, 4, (("a", 2, 7),)),
        (4, 8, (("a", -2, 3),)),
        (8, 12, (("b", 1, 4),)),
        (12, 16, ()),
        (4, 12, (("a", -2, 3), ("b", 5, 8))),
    ],
)
def test_page_keys_are_relative_to_the_page(start, stop, key):
    """Media that touch a page, and where they begin and end seen from it."""
    identity = read_extras([Media("a", 2, 7), Media("b", 9, 12)])

    assert key == identity.page_key(start, stop)


def test_pages_with_media_are_keyed_by_column():
    """As each for itself, up to the column asked for, whatever positions media claim."""
    identity = read_extras([Media("a", 2, 7), Media("b", 9, 10), Media("c", 10, 2**31 - 1)])
    keys = {column: identity.page_key(4 * column, 4 * column + 4) for column in range(5)}

    assert keys == identity.page_keys(4, 5)
    assert {0: keys[0], 1: keys[1]} == identity.page_keys(4, 2)


def test_pages_behind_unknown_media_are_not_shared():
    """From the first media without a digest on."""
    assert read_extras([]).shared_until is None
    assert read_extras([Media("a", 2, 7)]).shared_until is None
    assert 9 == read_extras([Media("a", 2, 7), Media(None, 9, 12)]).shared_until


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Salt(""), "Salt.value"),
        (lambda: Salt(b"a"), "Salt.value"),
        (lambda: Salt(None), "Salt.value"),
        (lambda: Adapter(""), "Adapter.id"),
        (lambda: Adapter("a", 1.0), "Adapter.version"),
        (lambda: Adapter("a", None), "Adapter.version"),
        (lambda: Adapter("a", True), "Adapter.version"),
        (lambda: Media("", 0, 1), "Media.digest"),
        (lambda: Media(3, 0, 1), "Media.digest"),
        (lambda: CrossInput("", 1), "cross.digest"),
        (lambda: CrossInput(None, 1), "cross.digest"),
    ],
)
def test_malformed_extras_are_refused(make, name):
    """IdentityError, which is a ValueError, names the field."""
    with pytest.raises(IdentityError) as caught:
        make()

    assert name == caught.value.name
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Media("a", -1, 1),
        lambda: Media("a", 2, 2),
        lambda: Media("a", 0, 1.5),
        lambda: CrossInput("a", 0),
        lambda: CrossInput("a", True),
    ],
)
def test_impossible_positions_are_refused(make):
    """Media cover at least one position; inputs have at least one token."""
    with pytest.raises(LengthError):
        make()


@pytest.mark.parametrize(
    "extras",
    [
        [Salt("a"), Salt("b")],
        [Adapter("a"), Adapter("b")],
        [CrossInput("a", 1), CrossInput("b", 1)],
        [Media("a", 0, 3), Media("b", 2, 4)],
        ["a"],
        [None],
        5,
        "text",
    ],
    ids=repr,
)
def test_contradicting_extras_are_refused(extras):
    """Two of a kind that stands alone, media that overlap, and what is no extra."""
    with pytest.raises(IdentityError) as caught:
        read_extras(extras)

    assert caught.value.name == "extra"


def framed(*fields):
    """SHA-256 over the fields, each after its length."""
    return sha256(b"".join(len(f).to_bytes(8, "little") + f for f in fields)).digest()


def test_digests_are_framed_sha256():
    """The format is written down here, so that others can compute it."""
    root = framed(b"octavo.page.v1", b"salt", b"t", b"adapter", b"x", b"i2")
    page = framed(root, b"\1\0\0\0\2\0\0\0", b"media", b"sm", b"1", b"3")

    assert root == root_digest((Salt("t"), Adapter("x", 2)))
    assert page == page_digest(root, b"\1\0\0\0\2\0\0\0", (("m", 1, 3),))


def test_digests_of_different_things_differ():
    """No two roots, however their fields could be run together, have one name."""
    roots = [
        (),
        (Salt("a"),),
        (Adapter("a"),),
        (Adapter("a", "0"),),
        (Adapter("a", 1),),
        (Salt("ai0"),),
        (Salt("a"), Adapter("a")),
        (CrossInput("a", 1),),
        (CrossInput(b"a", 1),),
        (CrossInput("a", 11),),
        (CrossInput("a1", 1),),
    ]

    assert len(roots) == len({root_digest(root) for root in roots})
