cimport cython
from octavo.core.groups cimport Group
from octavo.core.rows cimport Handle, Pass
from octavo.core.sequences cimport Parts
from octavo.core.steps cimport Steps

@cython.final
cdef class Core(Steps):
    cdef public int dropped
    cdef public long long coming
    @cython.locals(block="int[::1]", numbers="int[::1]", given="int[::1]", valid="int[::1]", n=int, first=int, at="long long", begin="long long", j=int, every=bint, some=bint, i=int, row=int, past=int, context=int, wants=int, count=int, known=int, end=int)
    cpdef void commit(self, Pass step, object ids, object counts, object kept) except *
    @cython.locals(block="int[::1]", n=int, first=int, at="long long", j="long long", i=int, row=int, past=int, context=int, count=int, end=int)
    cdef void check_commit(self, Pass step, int[::1] numbers, int[::1] given, int[::1] valid, bint every, bint some, bint partly) except *
    @cython.locals(known="long long")
    cdef void check_row(self, int place, int row, long long count, int past, int end, int context) except *
    @cython.locals(block="int[::1]", n=int, first=int, row=int, past=int, known="long long", begin="long long", ids="long long", position="long long", read=int, right=int)
    cdef void check_drafts(self, Pass step, int place, int end, int[::1] numbers, long long at) except *
    @cython.locals(later=bint, before=int, after=int, position=int, group=Group)
    cdef void keep(self, int place, int row, int end, int context) except *
    @cython.locals(row=int, number=int, end=int, group=Group)
    cdef void publish_copies(self, Pass step) except *
    cdef void drop_copies(self, Group group, tuple pages) except *
    @cython.locals(fresh="long long", i=int, row=int, root=int)
    cdef void publish_crosses(self, Pass step, Group group) except *
    @cython.locals(block="int[::1]", n=int, first=int, i=int, row=int, past=int, group=Group, number=int)
    cpdef void abort(self, Pass step) except *
    @cython.locals(step=Pass, handle=Handle)
    cpdef void retire(self, list handles) except *
    @cython.locals(fresh="long long", i=int, row=int)
    cdef void take_back_crosses(self, Pass step, Group group) except *
