"""The tensors of a plan on a device: one arena of exactly the planned bytes.

Knows bytes and strides. Does not know which slots are in use, by which sequence, or what they mean.
"""

from collections.abc import Mapping

import torch

from octavo.cache.views import Copies
from octavo.errors import PlanError
from octavo.planner import sizes
from octavo.planner.request import Plan
from octavo.storage.addresses import DeviceIndex, Ints, PageIndex
from octavo.storage.fields import zeros
from octavo.storage.layers import LayerStore
from octavo.storage.pages import PageBytes, check_content


def _device(given: object) -> torch.device:
    """A device by its name."""
    right = "it must be a torch.device or the name of one"
    if not isinstance(given, (str, torch.device)):
        raise PlanError("device", given, right)
    try:
        return torch.device(given)
    except RuntimeError as error:
        raise PlanError("device", given, right) from error


class Storage(LayerStore):
    """What every page of a plan holds, zeroed; and the verbs that put it there and take it out.

    Of tokens: `write`, `gather`, and for latents `write_latent`, `write_indexer`, `gather_latent`,
    `gather_indexer`. Of states: `write_states`, `read_states`. Of whole pages: `apply`, `zero`,
    `read_pages`, `write_pages`. A verb that raises has written nothing.

    Args:
        plan: from `octavo.plan`.
        device: a torch device; ``meta`` for shapes alone.

    Attributes:
        plan: as given.
        device: as a torch.device.
        dtype: element type of keys and values.
        arena: uint8[sizes.arena_bytes(plan)], all there is.
        draft: the same verbs for the layers of the plan's draft model.

    Raises:
        PlanError: the plan has page numbers only and no bytes, or there is no such device.
    """

    def __init__(self, plan: Plan, device: torch.device | str = "cpu") -> None:
        if not isinstance(plan, Plan) or plan.elements is None or not plan.tensors:
            raise PlanError("plan", plan, "it must come from octavo.plan, which knows bytes")
        self.arena = zeros(sizes.arena_bytes(plan), _device(device))
        addresses = DeviceIndex(plan, self.arena.device)
        own = [tensor for tensor in plan.tensors if not tensor.draft]
        super().__init__(plan, own, addresses, self.arena)
        drafts = plan.draft
        self.draft = LayerStore(
            drafts or plan, drafts.tensors if drafts else (), addresses, self.arena
        )
        self._bytes = PageBytes(plan, addresses, self.arena)

    @property
    def nbytes(self) -> int:
        """Bytes allocated: the planned ones."""
        return self.arena.nbytes

    def apply(self, copies: Mapping[str, Copies], fresh: Mapping[str, Ints] | None = None) -> None:
        """Run a step's ``copies`` (before the forward pass) or ``snapshots`` (after it).

        All sources of all groups are read, then fresh pages are zeroed, then targets are written:
        in this order no page that something is copied to is cleared.

        Args:
            copies: by group name, pages to copy.
            fresh: by group name, pages to fill with zeros: those of the step whose ``copies`` these
                are, where old content must not be seen; None: none.

        Raises:
            LengthError, UnknownGroup: no such pages; the null page as a target.
            PlanError: no arrays of ints; a target that stands twice, or lies in the bytes of one of
                another group. Nothing has been written then.

        Cost: O(bytes copied), held twice while it runs.
        """
        self._bytes.apply(copies, {} if fresh is None else fresh)

    def zero(self, pages: Mapping[str, Ints]) -> None:
        """Fill pages with zeros, before anything of a step is copied or written to them.

        Pages that a step has taken are zeroed by `apply`, in the right order. No result of octavo's
        depends on it, since what is unowned is never read.

        Args:
            pages: by group name, page ids.

        Raises:
            PlanError, LengthError, UnknownGroup: no such pages, or the null page.

        Cost: O(bytes of the pages).
        """
        self._bytes.zero(pages)

    def page_bytes(self, group: str) -> int:
        """Bytes of one page of ``group`` as `read_pages` gives it. O(1).

        Raises:
            UnknownGroup: no such group.
        """
        return self._bytes.size(self.addresses.group(group).name)

    def read_pages(self, group: str, pages: Ints | PageIndex) -> torch.Tensor:
        """Whole pages as bytes, copied: uint8[k, page_bytes(group)], for this plan alone.

        Raises:
            PlanError, LengthError, UnknownGroup: no such pages.

        Cost: O(bytes).
        """
        return self._bytes.read(self._pages(pages, self.addresses.group(group).name))

    def write_pages(self, group: str, pages: Ints | PageIndex, content: torch.Tensor) -> None:
        """Put back what `read_pages` gave, into pages of the same group.

        Args:
            group: name.
            pages: int[k].
            content: uint8[k, page_bytes(group)] on the storage's device.

        Raises:
            PlanError, LengthError, UnknownGroup: no such pages, one twice, the null page, or
                content of another shape, type or device. Nothing has been written then.

        Cost: O(bytes).
        """
        index = self.addresses.written(pages, self.addresses.group(group).name)
        size = self.page_bytes(group)
        self._bytes.write(index, check_content(content, index.pages.numel(), size, self.device))
