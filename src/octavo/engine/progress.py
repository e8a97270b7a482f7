"""Waiting for many requests at once, with a bar that shows how many have their answer."""

from collections.abc import Sequence

from tqdm.auto import tqdm

from octavo.engine.request import Request


def wait_for_all(requests: Sequence[Request], *, progress: bool) -> None:
    """Wait until all are done.

    Args:
        requests: of one engine.
        progress: whether to show the bar on stderr; tqdm decides how. A request that ended with an
            error does not count.

    Raises:
        Exception: the first error found of any of them, and what `Request.result` raises.
    """
    with tqdm(total=len(requests), unit="answer", disable=not progress) as bar:
        while True:
            left = [each for each in requests if not each.done]
            errors = [each.error for each in requests if each.error is not None]
            bar.update(sum(each.done and each.error is None for each in requests) - bar.n)
            if errors:
                raise errors[0]
            if not left:
                return
            left[0].wait(len(left[0].output))
