"""Which token comes, at random: the first in a race, each in its own time.

A token's time is exponentially distributed, divided by its chance, so that it comes first with just
that chance. Times are computed from the seed, how many tokens came before, and the token's id: no
state is kept, a step that is undone draws the same again, and models whose chances are much alike
mostly draw the same token. The unlikely many run as one; where that wins, one of them is drawn by a
number that falls among their chances laid end to end.
"""

from collections.abc import Sequence

import torch

_WIDTH = 64  # chances that are added up at once
_STRIDE, *_FACTORS = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15  # of SplitMix64
_REST, _PLACE = -1, -2  # in place of ids: the time of all others, and where among them


def keys_of(seeds: Sequence[int], positions: Sequence[int], device: torch.device) -> torch.Tensor:
    """What the random numbers of some tokens are computed from, int64[rows].

    Args:
        seeds: of each row, below 2**63.
        positions: of each row, how many tokens came before.
        device: where they are used.
    """
    first = _mix(torch.tensor(seeds, device=device))
    return _mix(first + torch.tensor(positions, device=device) * _STRIDE)


def race(
    ids: torch.Tensor, chances: torch.Tensor, rest: torch.Tensor, keys: torch.Tensor
) -> list[int]:
    """The token of each row that comes first; -1: one that is not listed.

    Args:
        ids: [rows, n] int64, tokens.
        chances: [rows, n] float32, at least 0; with the rest above 0.
        rest: [rows] float32, that of all others together.
        keys: [rows] of `keys_of`.

    Cost: O(rows * n).
    """
    runners = torch.cat([ids, ids.new_full((len(ids), 1), _REST)], 1)
    speeds = torch.cat([chances, rest[:, None]], 1) / -_numbers(keys, runners).log_()
    found: list[int] = runners.gather(1, speeds.argmax(-1, keepdim=True))[:, 0].tolist()
    return found


def draw(chances: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """A place of each row at random.

    Args:
        chances: [rows, n] float32, at least 0 and some above; they need not sum to 1.
        keys: [rows] of `keys_of`.

    Returns:
        Places, [rows] int64; one that has no chance never comes.

    Cost: O(rows * n), one pass.
    """
    numbers = _numbers(keys, torch.full_like(keys, _PLACE)[:, None])[:, 0]
    size = chances.shape[-1]
    cut = size // _WIDTH * _WIDTH
    sums = chances[:, :cut].view(len(chances), -1, _WIDTH).sum(-1)
    sums = torch.cat([sums, chances[:, cut:].sum(-1, keepdim=True)], 1).double()
    part, point = _fall(sums, numbers * sums.sum(-1))
    places = part[:, None] * _WIDTH + torch.arange(_WIDTH, device=chances.device)
    inner = chances.gather(1, places.clamp(max=size - 1)).double() * (places < size)
    at, _ = _fall(inner, point)
    return places.gather(1, at[:, None])[:, 0]


def _fall(chances: torch.Tensor, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """On which chance of its row a point falls, [rows] int64, and how far behind its beginning."""
    edges = chances.cumsum(-1)
    total = edges[:, -1]
    # one that is rounded up to the end would fall behind the last that has a chance
    points = torch.minimum(points, total.nextafter(torch.zeros_like(total)))
    at = torch.searchsorted(edges, points[:, None], right=True)
    begins = edges.gather(-1, at) - chances.gather(-1, at)
    return at[:, 0], (points - begins[:, 0]).clamp_(min=0)


def _numbers(keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """A random number of each id, [rows, n] float64, above 0 and below 1."""
    bits = _shifted(_mix(keys[:, None] + ids * _STRIDE), 12)
    return (bits.double() + 0.5) * 2**-52


def _mix(bits: torch.Tensor) -> torch.Tensor:
    """Each bit of int64 numbers spread over all: the finaliser of SplitMix64."""
    bits = (bits ^ _shifted(bits, 30)) * _FACTORS[0]
    bits = (bits ^ _shifted(bits, 27)) * _FACTORS[1]
    return bits ^ _shifted(bits, 31)


def _shifted(bits: torch.Tensor, by: int) -> torch.Tensor:
    """Shifted to the right with zeros before, not copies of the sign."""
    return (bits >> by) & ((1 << (64 - by)) - 1)
