"""Small caches of an active prefix, for their tests: filled, and looked at."""

import torch

import octavo

LAYERS, KV_HEADS, DIM = 2, 2, 4


def cache(capacity=8, **options):
    """A small cache."""
    sizes = {"layers": LAYERS, "kv_heads": KV_HEADS, "head_dim": DIM}
    return octavo.ActivePrefixCache(**sizes, capacity=capacity, **options)


def fill(kept, counts, start=1.0):
    """One pass whose keys count up from ``start`` and whose values are their negatives."""
    prefix = kept.begin(counts)
    for layer in range(LAYERS):
        shape = (kept.batch, KV_HEADS, prefix.positions.shape[1], DIM)
        key = start + 100 * layer + torch.arange(shape[2]).view(1, 1, -1, 1).expand(shape)
        prefix.update(layer, key, -key)
    return prefix


def held(kept, layer=0, row=0):
    """The first element of the key at each position a row holds."""
    alone = cache(kept.capacity)
    alone.copy_prefix(kept, row=row)
    return alone.begin_at([0], alone.kv_len).keys[layer][0, 0, :, 0].tolist()


def frozen(kept):
    """All that a cache is, as one value."""
    tensors = [tensor.tolist() for tensor in (*kept._keys, *kept._values)]
    return kept.lengths, kept.nbytes, tensors
