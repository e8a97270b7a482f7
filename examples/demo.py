"""octavo in one minute: plan a cache, then answer two questions about the same page of text.

The second prompt begins like the first, so most of its KV is found in the cache and not computed
again. Needs the model: `octavo pull smollm2-135m` fetches it once, as `make demo` does.
"""

import sys
import time
import warnings

import transformers

import octavo
from octavo.checkpoints.loading import LoadedModel, load
from octavo.checkpoints.text import Detokenizer, encode_chat
from octavo.engine import Engine, Request, SamplingParams

MODEL = "smollm2-135m"
MEMORY = "64MiB"
MAX_LENGTH = 512  # tokens of a prompt and its answer
TEXT = """\
The lighthouse at Cape Alder was built in 1871 by the engineer Martha Quill. It stands on a
granite rock at the mouth of the river Tarn and is 42 metres high. For its first forty years the
lamp burned whale oil; in 1911 it was changed to electric light, and since 1987 it has worked
without a keeper.

The last keeper was Tobias Finch. He lived in the tower for thirty years together with his wife
Edda and a parrot called Admiral, who had learned to imitate the fog horn so well that ships
answered him. When Finch retired, he moved to the village of Lower Marsh, where he opened a small
bakery. His rye bread is still sold there every Saturday.

Today the lighthouse is a museum. It is open from April to October and shows the old lamp, the
logbooks of the keepers, and the stuffed parrot. About 9,000 people visit it every year. The climb
to the gallery has 199 steps, and on a clear day one can see the mountains of the island of
Skerry.
"""
QUESTIONS = ("When was the lighthouse built?", "What was the name of the parrot?")


def main() -> None:
    """Load, plan, answer."""
    began = time.perf_counter()
    loaded = _load()
    plan = octavo.plan(loaded.spec, MEMORY, max_length=MAX_LENGTH, order="head")
    print(f"The plan of {MEMORY} of KV cache for {MODEL}:\n\n{plan.explain()}\n")
    with Engine(loaded.model, plan) as engine:
        for question in QUESTIONS:
            _answer(engine, loaded, question)
        peak = engine.cache.stats().peak_live
    seconds = time.perf_counter() - began
    print(f"At most {peak} of {plan.usable_pages} pages were in use. {seconds:.1f} s in all.")


def _load() -> LoadedModel:
    """The model, without what transformers has to say about it."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        return load(MODEL, "bf16")
    except octavo.ModelError as error:
        sys.exit(str(error))


def _answer(engine: Engine, loaded: LoadedModel, question: str) -> None:
    """Stream one answer and say what the cache had of its prompt."""
    print(f"> {question}")
    prompt = encode_chat(loaded.tokenizer, f"{TEXT}\n{question}")
    growing = Detokenizer(loaded.tokenizer)

    def show(_: Request, token: int) -> None:
        print(growing.push(token), end="", flush=True)

    params = SamplingParams(max_tokens=48, stop_token_ids=loaded.stop_token_ids)
    request = engine.submit(prompt, params, on_token=show)
    engine.run()
    print(growing.finish() + (" ..." if request.finish_reason == "length" else ""))
    print(f"  [{request.prompt_tokens} prompt tokens, {request.cached_tokens} of them cached]\n")


if __name__ == "__main__":
    main()
