"""The requests that decode, as rows of one batch: a step of all of them is a few array calls."""

import numpy as np

from octavo.cache.cache import Cache
from octavo.simulation.job import Job
from octavo.simulation.requests import Answers, Ints


class Rows:
    """Jobs whose prompt is computed, in the rows of a batch.

    Args:
        cache: theirs.
        answers: what each of them will say.

    Attributes:
        batch: for `Cache.extend`.
        jobs: by row.
    """

    def __init__(self, cache: Cache, answers: Answers) -> None:
        self.batch, self.jobs = cache.batch(), list[Job]()
        self._answers = answers
        self._next, self._stride, self._left = np.zeros((3, cache.max_sequences), np.intp)

    def __len__(self) -> int:
        return len(self.jobs)

    def add(self, job: Job) -> None:
        """Let a job decode from its next token on. O(columns)."""
        row, number = self.batch.add(job.sequence), job.request.number
        self._stride[row] = self._answers.stride[number]
        self._next[row] = self._answers.start[number] + self._stride[row] * job.produced
        self._left[row] = job.request.output_length - job.produced
        self.jobs.append(job)

    def remove(self, job: Job) -> None:
        """Take a job out; the last one moves into its row. O(columns)."""
        row, last = self.batch.remove(job.sequence).row, len(self.jobs) - 1
        job.produced = job.request.output_length - int(self._left[row])
        for values in (self._next, self._stride, self._left):
            values[row] = values[last]
        self.jobs[row] = self.jobs[last]
        self.jobs.pop()

    def tokens(self) -> Ints:
        """The next token of each row. O(rows)."""
        return self._answers.ids[self._next[: len(self.jobs)]]

    def advance(self) -> list[Job]:
        """Each row has said its token; those whose answer is complete. O(rows)."""
        rows = len(self.jobs)
        self._next[:rows] += self._stride[:rows]
        self._left[:rows] -= 1
        return [self.jobs[row] for row in np.flatnonzero(self._left[:rows] == 0)]
