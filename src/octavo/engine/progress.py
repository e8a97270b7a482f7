"""Waiting for many requests at once, with a bar that shows how many are done."""

from collections.abc import Sequence

from tqdm.auto import tqdm

from octavo.engine.request import Request


def wait_for_all(requests: Sequence[Request], *, progress: bool) -> None:
    """Wait until all are done.

    Args:
        requests: of one engine.
        progress: whether to show the bar on stderr; tqdm decides how.

    Raises:
        Exception: the first error found of any of them, and what `Request.result` raises.
    """
    with tqdm(total=len(requests), unit="answer", disable=not progress) as bar:
        for request in requests:
            while not request.done:
                request.wait(len(request.output))
                done = 0
                for each in requests:
                    if each.error is not None:
                        raise each.error
                    done += each.done
                bar.update(done - bar.n)
        for request in requests:
            request.result()
