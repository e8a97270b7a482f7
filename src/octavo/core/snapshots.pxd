cimport cython
from octavo.core.groups cimport Group
from octavo.core.sequences cimport Sequences

cdef class Snapshots(Sequences):
    cpdef void stop_at(self, int row, set positions) except *
    @cython.locals(stops=list, at=Py_ssize_t)
    cdef void aim(self, int row) except *
    @cython.locals(stops=list, at=Py_ssize_t)
    cdef bint is_stop(self, int row, int position) except -1
    @cython.locals(page=int)
    cdef void fetch(self, int row, Group group, int node) except *
    @cython.locals(number=int, page=int)
    cdef void drop_fetches(self, int row) except *
    @cython.locals(group=Group, page=int)
    cdef bint can_fetch(self, int node) except -1
    cdef bint has_room(self, Group group) except -1
    @cython.locals(group=Group)
    cdef bint make_room(self) except -1
    @cython.locals(node=int)
    cdef int oldest_state(self, Group group) except -1
    @cython.locals(page=int)
    cdef bint give_up_state(self, Group group) except -1
    @cython.locals(tip=int)
    cdef void keep_state(self, Group group, int row, tuple pages) except *
    cdef void copy_later(self, int number, int source, int target) except *
    @cython.locals(source=int, target=int)
    cdef void forget_copies(self, Group group, int row) except *
