"""SharedPrefixes: what is published of a prompt is found and held, full pages are published."""

from __future__ import annotations

from typing import Any

from octavo.core.arena import ints
from octavo.core.groups import Group
from octavo.core.sequences import Parts
from octavo.core.snapshots import Snapshots


class SharedPrefixes(Snapshots):
    """The rows of one cache, and the prefixes they share.

    Attributes:
        path: nodes of the prompt matched last; ``chain``, how many of them are computed.
        awaited: columns of it up to the last that a row is coming to.
        boundary: columns of it that all groups can serve; ``tokens_boundary``, those of tokens.
        published: pages newly published in the last commit.
        repointed: (place, group, column, old, new) of entries it moved to equal pages.
    """

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.path = ints(64)
        self.chain = 0
        self.awaited = 0
        self.boundary = 0
        self.tokens_boundary = 0
        self.published = 0
        self.repointed: list[tuple[int, int, int, int, int]] = []

    def match(self, begin: int, most: int, root: int, tags: dict[int, int] | None) -> int:
        """The longest boundary, in columns, that all groups can serve of the ids at ``begin``.

        A hit at b needs, of each group, the pages a query at b can see: all below b, those of a
        window and the sinks, those of b's chunk, or one state; and of windows and chunks as many
        more as ``rollback`` lets the row go back. Leaves the computed nodes in
        ``path`` (``chain`` of them), each group's own boundary in its ``alone``, what all groups of
        tokens could serve in ``tokens_boundary``, and how far others are coming in ``awaited``.
        Changes nothing else.

        Args:
            most: full pages to look for.
            root: the node before the first; -1: none is known.
            tags: of pages with media, by column; -1: such media are not known.

        Cost: O(tokens compared + columns x groups).
        """
        self.chain = 0
        self.awaited = 0
        self.boundary = 0
        self.tokens_boundary = 0
        for group in self.groups:
            group.run = 0
            group.gap = False
            group.alone = 0
        if root < 0 or not self.publishes:
            return 0
        if most > len(self.path):
            self.path = ints(2 * most)
        size, node, index = self.size, root, self.index
        for column in range(most):
            tag = 0 if tags is None else tags.get(column, 0)
            at = begin + column * size
            if tag < 0:
                break
            node = index.find(node, tag, at)
            if node == 0:
                break
            if index.coming[node]:
                self.awaited = column + 1
            if not index.expected[node]:
                self.path[column] = node
                self.chain = column + 1
                self.serve(node, column)
        return self.boundary

    def serve(self, node: int, column: int) -> None:
        """Whether a hit can end behind the node of ``column``, by group and in all."""
        every = tokens = True
        for group in self.groups:
            page = self.index.held[node * self.index.groups + group.number]
            if group.keeps_tokens:
                if page == 0:
                    group.run = column + 1
                    group.gap = group.gap or column < group.sinks
                good = not group.gap and self.first_of_hit(group, column + 1) >= group.run
                tokens = tokens and good
            else:
                good = group.keeps_cross or page != 0
            if good:
                group.alone = column + 1
            every = every and good
        if every:
            self.boundary = column + 1
        if tokens:
            self.tokens_boundary = column + 1

    def first_of_hit(self, group: Group, boundary: int) -> int:
        """The first column, sinks apart, that a hit of ``boundary`` columns holds. O(1)."""
        return group.floor(boundary * self.size - self.rollback)

    def hit(self, group: Group, boundary: int, root: int) -> list[int]:
        """Pages of a group that the hit at ``boundary`` after `match` would hold. O(columns)."""
        if group.keeps_cross:
            return list(self.index.bundles[group.number].get(root, ()))
        if boundary == 0:
            return []
        if group.keeps_state:
            return list(self.index.bundles[group.number][self.path[boundary - 1]])
        stop = self.first_of_hit(group, boundary)
        pages = []
        for column in range(boundary):
            if column < group.sinks or column >= stop:
                node = self.path[column]
                pages.append(self.index.held[node * self.index.groups + group.number])
        return pages

    def hold(self, row: int, boundary: int, root: int, cross: bool) -> None:
        """A row that holds nothing stands at a boundary that `match` found. O(known).

        Args:
            root: the node its first page comes after.
            cross: whether it takes pages of a cross input that an earlier sequence has written.
        """
        start, known = boundary * self.size, self.span(row, self.known[row])
        self.index.reserve(max(0, known - boundary))
        for group in self.groups:
            if group.keeps_tokens:
                self.hold_tokens(group, row, boundary)
            elif group.keeps_state:
                group.table.reserve(row, group.units * group.parts, 0)
                if boundary:
                    self.fetch(row, group, self.path[boundary - 1])
            else:
                group.table.reserve(row, self.width_in(group, row), 0)
                if cross and self.cross[row]:
                    self.hold_cross(group, row, root)
        self.computed[row] = start
        self.scheduled[row] = start
        self.floor[row] = start
        self.root[row] = root
        tip = self.path[boundary - 1] if boundary else root
        self.index.users[tip] += 1
        self.tip[row] = tip
        self.front[row] = tip
        self.come(row, boundary, known)
        self.prompt[row] = min(max(self.known[row] - 1, 0), self.shared[row]) // self.size
        self.branch[row] = self.tokens_boundary
        if self.states or self.cross[row]:
            self.special[row] = 1

    def hold_tokens(self, group: Group, row: int, boundary: int) -> None:
        """The pages of a hit in a group of tokens. O(columns)."""
        index, pool, number = self.index, self.pool, group.number
        stop = self.first_of_hit(group, boundary)
        group.first[row] = stop
        group.table.reserve(row, boundary, 0)
        for column in range(boundary):
            if column < group.sinks or column >= stop:
                page = index.held[self.path[column] * index.groups + number]
                pool.reuse(number, page)
                group.put(row, column, page)

    def hold_cross(self, group: Group, row: int, root: int) -> None:
        """The pages of a cross input, where they are kept. O(pages)."""
        kept = self.index.bundles[group.number]
        if self.publishes and root in kept:
            pages = kept[root]
            for column in range(len(pages)):
                self.pool.reuse(group.number, pages[column])
                group.put(row, column, pages[column])

    def learn(self, row: int, tokens: Any, length: int) -> None:
        """Token ids that follow what a row knows. O(length).

        Raises:
            Refused: an entry is no token id.
        """
        known = self.known[row]
        before, after = self.span(row, known), self.span(row, known + length)
        self.index.reserve(after - before)
        self.ids.reserve(row, known + length, known)
        self.write(self.ids.data, self.ids.begin[row] + known, tokens, length)
        shared = self.shared[row]
        self.shared[row] = 0  # an interrupted row publishes nothing any more
        self.known[row] = known + length
        self.come(row, before, after)
        self.shared[row] = shared

    def come(self, row: int, first: int, stop: int) -> None:
        """A row knows full columns ``first`` to ``stop`` now, and is coming to them.

        There is room for their nodes. Cost: O(tokens).
        """
        if first >= stop:
            return
        index, node, tags = self.index, self.front[row], self.tags[row]
        begin = self.ids.begin[row]
        for column in range(first, stop):
            tag = 0 if tags is None else self.tag_of(tags, column)
            node = index.come(node, tag, begin + column * self.size)
        self.stand(row, node)

    def turn_back(self, row: int, count: int) -> None:
        """A row is not coming to the last ``count`` columns it knows any more. O(count)."""
        index, node = self.index, self.front[row]
        for _ in range(count):
            index.await_one(node, -1)
            node = index.parent[node]
        self.stand(row, node)

    def stand(self, row: int, node: int) -> None:
        """The last full page a row knows is this one. Amortised O(1)."""
        front = self.front[row]
        self.index.users[node] += 1
        self.front[row] = node
        self.index.leave(front)

    def publish(self, place: int, row: int, first: int, stop: int, later: bool) -> None:
        """Full columns ``first`` to ``stop`` are computed: their nodes have their pages.

        An entry whose node has a page moves to that one, unless a ``later`` step reads its own.

        Cost: O(tokens + columns x groups).
        """
        index, tip, tags = self.index, self.tip[row], self.tags[row]
        begin = self.ids.begin[row]
        for column in range(first, stop):
            tag = 0 if tags is None else self.tag_of(tags, column)
            at = begin + column * self.size
            tip = index.find(tip, tag, at) if index.siblings[tip] else index.child[tip]
            index.expected[tip] = 0
            index.await_one(tip, -1)
            for group in self.groups:
                if group.keeps_tokens:
                    page = group.entry(row, column)
                    other = index.held[tip * index.groups + group.number]
                    if other == 0 and page:
                        self.pool.publish(group.number, page, tip)
                        self.published += 1
                        if self.stored is not None:
                            self.report(group.number, tip, page)
                    elif other != page and page and not later:
                        self.repoint(place, group, row, column, page, other)
        self.tip[row] = tip

    def tag_of(self, tags: dict[int, int], column: int) -> int:
        """The tag of a row's page with media; 0: it has none. O(1)."""
        return tags.get(column, 0)

    def report(self, number: int, node: int, page: int) -> None:
        """Tell who listens that a page is published. O(1) and theirs."""
        assert self.stored is not None
        self.stored(number, node, page)

    def repoint(self, place: int, group: Group, row: int, column: int, old: int, new: int) -> None:
        """Move an entry to the page its node has, unless what is owed needs the own copy. O(1)."""
        if self.guaranteed:
            self.ask()
            self.pool.pin(group.number, new)
            if self.pool.is_short(False):
                return
        self.pool.reuse(group.number, new)
        group.put(row, column, new)
        self.pool.release(group.number, old, False)
        self.repointed.append((place, group.number, column, old, new))
