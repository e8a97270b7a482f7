"""Memory of many tensors in one piece."""

import mmap

import torch

from octavo.engine.large_pages import LINE, LargePages, whole_lines


def test_tensors_are_copied_one_behind_the_other():
    """Each begins with a line of the cache, behind the one before it, with what was given."""
    given = [torch.randint(0, 256, (3, n), dtype=torch.uint8) for n in (7, 64, 50)]
    pages = LargePages(sum(whole_lines(tensor.nbytes) for tensor in given))
    places = [pages.place(tensor) for tensor in given]
    del pages

    assert all(map(torch.equal, places, given))
    starts = [place.data_ptr() - places[0].data_ptr() for place in places]
    assert [0, LINE, LINE + 192] == starts
    assert 0 == places[0].data_ptr() % LINE


def test_tensors_stay_where_nothing_can_be_asked_for(monkeypatch):
    """Systems without such pages keep tensors as they are."""
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    tensor = torch.ones(5, dtype=torch.uint8)

    assert LargePages(64).place(tensor) is tensor
