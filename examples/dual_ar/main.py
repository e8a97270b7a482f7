"""Two requests of three utterances in one voice, with a cache of 32,768 frames."""

import argparse
import time

import torch
from dual_ar import CODEBOOKS, CODES, TEXT, DualAR
from generation import Session

CAPACITY, VOICE, MOST = 32_768, 200, 40


def speech(count: int) -> torch.Tensor:
    """Frames as a codec would give them: [count, 1 + CODEBOOKS]."""
    codes = torch.randint(CODES, (count, CODEBOOKS))
    return torch.cat([codes[:, :1] + TEXT, codes], 1)


def text(count: int) -> torch.Tensor:
    """Frames of text: a token and no codes."""
    frames = torch.zeros(count, 1 + CODEBOOKS, dtype=torch.int64)
    frames[:, 0] = torch.randint(TEXT, (count,))
    return frames


def main() -> None:
    """Speak, and say what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compile", action="store_true", help="needs a C++ compiler, and a minute")
    compiled = parser.parse_args().compile
    torch.manual_seed(0)
    model = DualAR()
    if compiled:
        model.slow.compile()
        model.fast.compile()
    session = Session(model, batch=3, capacity=CAPACITY, bucket=256 if compiled else 1)
    session.hear(speech(VOICE))
    print(f"voice: {VOICE} frames, computed once")
    for number in range(2):
        prompts = [text(count) for count in (23, 9, 41)]
        start = time.perf_counter()
        spoken = session.generate(prompts, MOST)
        ms = (time.perf_counter() - start) * 1e3
        print(
            f"request {number}: {[len(frames) for frames in spoken]} frames in {ms:.0f} ms; rows "
            f"hold {session.slow.lengths} of {CAPACITY}, {session.slow.nbytes / 2**20:.1f} MiB"
        )


if __name__ == "__main__":
    main()
