"""Which worker runs which tests: `--dist loadgroup` of pytest-xdist at a constant price a test."""

from __future__ import annotations

from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController


class WithoutFinishedGroups(LoadGroupScheduling):
    """Forgets groups of tests that have run.

    Behind each test its base counts what a worker has left over all groups that it ever had, and a
    test alone is a group: 22,000 tests on two workers cost 47 s of processor time.
    """

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0
    ) -> None:
        """Note that a worker has run a test, and give it more."""
        name = self.registered_collections[node][item_index]
        assigned = self.assigned_work[node]
        group = assigned[self._split_scope(name)]
        group[name] = True
        if all(group.values()):
            del assigned[self._split_scope(name)]
        self._reschedule(node)
