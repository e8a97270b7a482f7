cimport cython
from octavo.core.arena cimport copy
from octavo.core.groups cimport Group
from octavo.core.index cimport PrefixIndex
from octavo.core.pages cimport PagePool
from octavo.core.sequences cimport Parts
from octavo.core.snapshots cimport Snapshots

cdef class SharedPrefixes(Snapshots):
    cdef public int chain, awaited, boundary, tokens_boundary, published
    cdef public int[::1] path
    cdef public list repointed
    @cython.locals(group=Group, size=int, node=int, index=PrefixIndex, column=int, tag=int, at="long long")
    cpdef int match(self, long long begin, int most, int root, dict tags) except -1
    @cython.locals(every=bint, tokens=bint, good=bint, group=Group, page=int)
    cdef void serve(self, int node, int column) except *
    cdef int first_of_hit(self, Group group, int boundary) except -1
    @cython.locals(stop=int, column=int, node=int)
    cpdef list hit(self, Group group, int boundary, int root)
    @cython.locals(start=int, known=int, tip=int, group=Group)
    cpdef void hold(self, int row, int boundary, int root, bint cross) except *
    @cython.locals(index=PrefixIndex, pool=PagePool, number=int, stop=int, column=int, page=int)
    cdef void hold_tokens(self, Group group, int row, int boundary) except *
    @cython.locals(column=int, pages=tuple, kept=dict)
    cdef void hold_cross(self, Group group, int row, int root) except *
    @cython.locals(known=int, before=int, after=int)
    cpdef void learn(self, int row, object tokens, Py_ssize_t length) except *
    @cython.locals(index=PrefixIndex, node=int, tags=dict, begin="long long", column=int, tag=int)
    cdef void come(self, int row, int first, int stop) except *
    @cython.locals(index=PrefixIndex, node=int)
    cdef void turn_back(self, int row, int count) except *
    @cython.locals(front=int)
    cdef void stand(self, int row, int node) except *
    @cython.locals(index=PrefixIndex, tip=int, tags=dict, begin="long long", column=int, tag=int, at="long long", group=Group, page=int, other=int)
    cdef void publish(self, int place, int row, int first, int stop, bint later) except *
    cdef void repoint(self, int place, Group group, int row, int column, int old, int new) except *
    cdef int tag_of(self, dict tags, int column) except -1
    cdef void report(self, int number, int node, int page) except *
