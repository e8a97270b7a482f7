cimport cython
from octavo.core.eviction cimport Lanes
from octavo.core.index cimport PrefixIndex
from octavo.core.spaces cimport Space

@cython.final
cdef class PagePool:
    cdef public int parents, groups, first, again, stacked, touched, peak
    cdef public long long evicted, marks
    cdef public bint packed
    cdef public PrefixIndex index
    cdef public Space shared
    cdef public Lanes quiet
    cdef public object excess, removed, vacated
    cdef public list spaces
    cdef public int[::1] owner, live, vacant, left, right, chain, used, stack
    cdef public long long[::1] mark, due, need, lack, pinned, opening
    cdef Space space(self, int group)
    cpdef int free(self) except -1
    cpdef int busy(self) except -1
    @cython.locals(space=Space, parent=int, page=int)
    cpdef int take(self, int group) except -1
    @cython.locals(parent=int, page=int)
    cdef int choose(self, int group, Space space) except -2
    @cython.locals(parent=int)
    cdef int fullest(self, Space space) except -2
    @cython.locals(parent=int)
    cdef int resting_or_free(self, Space space) except -2
    @cython.locals(room="long long", mine="long long", wanted="long long", number=int, space=Space)
    cdef bint can_open(self, int group) except -1
    cdef Py_ssize_t wanted(self, Space space, long long need, long long more) except -1
    @cython.locals(page=int)
    cdef int pop(self, Space space, int parent) except -1
    @cython.locals(first=int, page=int)
    cdef void rouse(self, int group, Space space, int parent) except *
    cdef void enliven(self, Space space, int parent) except *
    @cython.locals(space=Space, parent=int)
    cpdef void retain(self, int group, int page) except *
    @cython.locals(space=Space)
    cpdef void reuse(self, int group, int page) except *
    @cython.locals(space=Space, parent=int)
    cpdef void release(self, int group, int page, bint cold) except *
    @cython.locals(first=int, lane=int, page=int)
    cdef void quieten(self, Space space, int parent) except *
    cdef void settle(self, Space space, int parent) except *
    @cython.locals(space=Space)
    cpdef bint is_nobodys(self, int group, int page) except *
    cdef void set_free(self, Space space, int parent) except *
    cdef void vacate(self, Space space, int page, int parent) except *
    @cython.locals(space=Space)
    cpdef void publish(self, int group, int page, int node) except *
    @cython.locals(space=Space, page=int)
    cpdef void publish_bundle(self, int group, tuple pages, int node) except *
    @cython.locals(space=Space, index=PrefixIndex, node=int, at="long long", pages=tuple)
    cpdef void forget(self, int group, int page, bint evicted) except *
    @cython.locals(page=int)
    cdef void unpublish_bundle(self, int group, Space space, tuple pages, int node) except *
    @cython.locals(parent=int)
    cdef void unpublish(self, Space space, int page) except *
    @cython.locals(parent=int, group=int, space=Space, first=int, page=int)
    cdef void give_up_parent(self) except *
    @cython.locals(group=int, space=Space)
    cpdef void give_up_all(self) except *
    @cython.locals(vacant=int, ring=int, last=int)
    cdef void list_vacant(self, Space space, int parent) except *
    @cython.locals(left=int, right=int)
    cdef void unlist(self, int parent) except *
    @cython.locals(group=int)
    cpdef void ask(self) except *
    @cython.locals(space=Space, parent=int)
    cpdef void pin(self, int group, int page) except *
    @cython.locals(short=bint, room="long long", group=int, space=Space, need="long long", more="long long", own="long long", there="long long", lack="long long")
    cpdef bint is_short(self, bint one_by_one) except -1
    @cython.locals(count="long long", vacant=int, parent=int)
    cdef Py_ssize_t beside_live(self, Space space) except -1
