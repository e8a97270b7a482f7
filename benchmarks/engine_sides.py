"""The sides of `bench_engine.py`, each in an interpreter of its own.

Run as a script with the name of a side and a model it answers a line of JSON with a line of JSON:
`prompts` and `new` in, the seconds at which the count of new tokens stood where, and the tokens,
out. Its first line says which version it is, or why it cannot run. `DTYPE` in the environment is
that of weights and keys, fp32 or bf16, of the sides that have a choice.
"""

import json
import os
import sys
import time
from importlib.metadata import version
from typing import Any

SEED_LENGTH = 2_048  # longest sequence of any side
DTYPE = os.environ.get("DTYPE", "fp32")
clock = time.process_time if "CPU_TIME" in os.environ else time.perf_counter
Counts = list[tuple[float, int]]
"""Seconds since the start, and new tokens of all prompts by then, from every prompt's first on."""


class Octavo:
    """The engine, with the weights as they are loaded."""

    quantise: str | None = None

    def __init__(self, model: str) -> None:
        import octavo
        from octavo.checkpoints.loading import load
        from octavo.engine import Engine, SamplingParams

        loaded = load(model, dtype=DTYPE)
        plan = octavo.plan(
            loaded.spec, "4GiB", max_length=SEED_LENGTH, page_size=32, dtype=DTYPE, order="head"
        )
        options = {} if self.quantise is None else {"quantise": self.quantise}
        self.engine = Engine(loaded.model, plan, **options)
        self.params = SamplingParams
        self.version = f"octavo {version('octavo')}"

    def run(self, prompts: list[list[int]], new: int) -> tuple[Counts, list[list[int]]]:
        """Steps of the engine until all have ended."""
        engine, counts, start = self.engine, [], clock()
        before = engine.stats.generated_tokens
        requests = [engine.submit(ids, self.params(max_tokens=new)) for ids in prompts]
        while not all(request.done for request in requests):
            engine.step()
            if all(request.output for request in requests):
                counts.append((clock() - start, engine.stats.generated_tokens - before))
        return counts, [list(request.output) for request in requests]


class OctavoInt4(Octavo):
    """The engine with linear layers in 4 bits, the output layer in 8."""

    quantise = "int4"


class Generate:
    """`generate()` of transformers: one batch, its own cache."""

    def __init__(self, model: str) -> None:
        from octavo.checkpoints.loading import load

        self.model = load(model, dtype=DTYPE).model
        self.version = f"transformers {version('transformers')}"

    def run(self, prompts: list[list[int]], new: int) -> tuple[Counts, list[list[int]]]:
        """One call; a stopping criterion looks at the clock and never stops."""
        import torch
        from transformers import StoppingCriteria

        counts: Counts = []
        start = clock()

        class Clock(StoppingCriteria):
            def __call__(self, ids: Any, _scores: Any, **_rest: Any) -> Any:
                made = (ids.shape[1] - len(prompts[0])) * len(ids)
                counts.append((clock() - start, made))
                return torch.zeros(len(ids), dtype=torch.bool)

        given = torch.tensor(prompts)
        found = self.model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=new,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            stopping_criteria=[Clock()],
        )
        return counts, found[:, given.shape[1] :].tolist()


class GenerateBatch(Generate):
    """`generate_batch()` of transformers: continuous batching; one manager, kept for all rounds."""

    def run(self, prompts: list[list[int]], new: int) -> tuple[Counts, list[list[int]]]:
        """One call; its own clock says when each token came."""
        from transformers import ContinuousBatchingConfig, GenerationConfig

        start = clock()
        found = self.model.generate_batch(
            prompts,
            generation_config=GenerationConfig(
                max_new_tokens=new, do_sample=False, eos_token_id=-1, pad_token_id=0
            ),
            continuous_batching_config=ContinuousBatchingConfig(
                num_blocks=256, max_batch_tokens=2_048
            ),
            record_timestamps=True,
            persistent_manager=True,
            warmup=False,
        )
        took = clock() - start
        tokens = [list(each.generated_tokens) for each in found.values()]
        if [len(each) for each in tokens] != [new] * len(prompts):
            raise RuntimeError("generate_batch ended early")
        if clock is not time.perf_counter:  # its timestamps are of that clock
            return [(took, new * len(prompts))], tokens
        stamps = sorted(stamp - start for each in found.values() for stamp in each.timestamps)
        ready = max(min(each.timestamps) for each in found.values()) - start
        counts = [(stamp, number + 1) for number, stamp in enumerate(stamps)]
        return [count for count in counts if count[0] >= ready], tokens


class Vllm:
    """vLLM's engine on a CPU, step by step."""

    def __init__(self, model: str) -> None:
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        from vllm import LLM, SamplingParams

        self.params = SamplingParams
        self.llm = LLM(
            model,
            dtype={"fp32": "float32", "bf16": "bfloat16"}[DTYPE],
            max_model_len=SEED_LENGTH,
            block_size=32,
            enforce_eager="VLLM_EAGER" in os.environ,
            enable_prefix_caching=True,
        )
        self.version, self.number = f"vllm-cpu {version('vllm-cpu')}", 0

    def run(self, prompts: list[list[int]], new: int) -> tuple[Counts, list[list[int]]]:
        """Steps of its engine until all have ended."""
        engine, counts, found = self.llm.llm_engine, [], {}
        params = self.params(max_tokens=new, temperature=0, ignore_eos=True, detokenize=False)
        start = clock()
        for ids in prompts:
            self.number += 1
            engine.add_request(f"{self.number:08}", {"prompt_token_ids": ids}, params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                found[output.request_id] = list(output.outputs[0].token_ids)
            if len(found) == len(prompts):
                counts.append((clock() - start, sum(map(len, found.values()))))
        return counts, [found[key] for key in sorted(found)]


class OpenVino:
    """OpenVINO GenAI on a GGUF file, its weights in 4 bits as they are there."""

    def __init__(self, model: str) -> None:
        import openvino
        import openvino_genai as genai

        self.genai, self.tensor = genai, openvino.Tensor
        config = genai.SchedulerConfig()
        config.cache_size, config.enable_prefix_caching = 4, True
        config.max_num_batched_tokens = 2_048
        self.pipe = genai.ContinuousBatchingPipeline(model, config, "CPU")
        self.version = f"openvino-genai {version('openvino-genai')}"

    def run(self, prompts: list[list[int]], new: int) -> tuple[Counts, list[list[int]]]:
        """Steps of its pipeline until all have ended."""
        import numpy as np

        config = self.genai.GenerationConfig(
            max_new_tokens=new, ignore_eos=True, do_sample=False, apply_chat_template=False
        )
        counts, start = [], clock()
        found: list[list[int]] = [[] for _ in prompts]
        handles = [
            self.pipe.add_request(number, self.tensor(np.array([ids], np.int64)), config)
            for number, ids in enumerate(prompts)
        ]
        while self.pipe.has_non_finished_requests():
            self.pipe.step()
            for ids, handle in zip(found, handles, strict=True):
                while handle.can_read():
                    ids += [t for part in handle.read().values() for t in part.generated_ids]
            if all(found):
                counts.append((clock() - start, sum(map(len, found))))
        return counts, found


SIDES: dict[str, Any] = {
    "octavo": Octavo,
    "octavo int4": OctavoInt4,
    "generate": Generate,
    "generate_batch": GenerateBatch,
    "vLLM": Vllm,
    "OpenVINO": OpenVino,
}


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a side prints is not an answer

    def say(reply: dict[str, Any]) -> None:
        print(json.dumps(reply), file=answers, flush=True)

    try:
        side = SIDES[sys.argv[1]](sys.argv[2])
    except Exception as error:  # noqa: BLE001, whatever it is, the side is left out by name
        say({"error": f"{type(error).__name__}: {error}"})
        return
    say({"version": side.version})
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            counts, tokens = side.run(asked["prompts"], asked["new"])
            say({"counts": counts, "tokens": tokens})
        except Exception as error:  # noqa: BLE001, whoever reads the pipe says so
            say({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
