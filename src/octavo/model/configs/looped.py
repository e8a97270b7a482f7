"""Families that run some of their layers several times, each time with keys of their own."""

from octavo.errors import ConfigError
from octavo.model.configs.dense import full, unshared_wide
from octavo.model.configs.fields import Fields, with_windows
from octavo.model.configs.inkling import inkling
from octavo.model.layers import Layer


def dory(fields: Fields) -> list[Layer]:
    """Every fourth layer sees everything; those in the middle run ``n_recurrent_loops`` times.

    Files list attention and feed-forward as blocks of their own, two per layer. Each loop keeps its
    own keys and values unless ``recurrent_kv_cache_mode`` is ``last_loop``.
    """
    types = fields.get("layer_types")
    blocks = 2 if isinstance(types, list) and "mlp" in types else 1
    own = fields
    if blocks == 2:
        changed = {
            "num_hidden_layers": fields.layers // 2,
            "layer_types": fields.listed("layer_types")[::2],
        }
        own = fields.replaced(changed)
    layers = with_windows(own, lambda layer: (layer + 1) % 4 != 0)
    first = fields.count("n_input_layers", default=8, low=0) // blocks
    last = fields.count("n_output_layers", default=8, low=0) // blocks
    middle = fields.count(
        "n_recurrent_layers", default=blocks * (len(layers) - first - last), low=0
    )
    mode = fields.get("recurrent_kv_cache_mode", default="per_loop")
    if mode not in ("per_loop", "last_loop"):
        raise ConfigError("recurrent_kv_cache_mode", mode, "it must be per_loop or last_loop")
    loops = fields.count("n_recurrent_loops", default=2) if mode == "per_loop" else 1
    return layers + layers[first : first + middle // blocks] * (loops - 1)


def hrm(fields: Fields) -> list[Layer]:
    """Two stacks that run in cycles: each run of each layer keeps keys and values of its own.

    A file that says ``num_layers_per_stack`` counts all runs in ``num_hidden_layers``.
    """
    runs = fields.count("H_cycles") * (fields.count("L_cycles") + 1)
    plain = unshared_wide(fields)
    return plain if fields.get("num_layers_per_stack") is not None else plain * runs


def inkling2(fields: Fields) -> list[Layer]:
    """As Inkling; the layers of the loop keep their own at each of ``loop_num_passes`` passes."""
    layers = inkling(fields)
    given = fields.inner("loop_config")
    first = given.count("core_start", default=fields.count("loop_layer_index_start", low=0), low=0)
    last = given.count("core_end", default=fields.count("loop_layer_index_end"))
    passes = given.count("num_passes", default=fields.count("loop_num_passes"))
    return layers + layers[first:last] * (passes - 1)


def ouro(fields: Fields) -> list[Layer]:
    """All layers run ``total_ut_steps`` times."""
    return full(fields) * fields.count("total_ut_steps", default=4)
