cimport cython
from octavo.core.arena cimport Arena, copy

@cython.final
cdef class Tags:
    cdef public dict number
    cdef public list thing, users, spare
    cpdef int find(self, object thing) except -2
    cpdef int hold(self, object thing) except -1
    cpdef void keep(self, int tag) except *
    cpdef void drop(self, int tag) except *

@cython.final
cdef class PrefixIndex:
    cdef public int size, groups, end, spare, count, salt, bundled
    cdef public int[::1] parent, child, siblings, code, tag, users, following, held, tokens, buckets
    cdef public int[::1] expected, coming
    cdef public Arena ids
    cdef public long long version
    cdef public bint named
    cdef public Tags tags
    cdef public list bundles, idle
    cdef public dict roots, keys, names
    @cython.locals(code="unsigned long long", i=Py_ssize_t)
    cpdef int hash(self, int parent, int tag, long long at) except -1
    @cython.locals(node=int, code=int)
    cpdef int find(self, int parent, int tag, long long at) except -1
    @cython.locals(i=Py_ssize_t, own="long long")
    cdef bint same(self, long long node, long long at) except -1
    @cython.locals(node="long long", code=int, bucket=int)
    cpdef int add(self, int parent, int tag, long long at) except -1
    @cython.locals(node=int)
    cdef int come(self, int parent, int tag, long long at) except -1
    cdef void await_one(self, int node, int more) except *
    cpdef int enter_root(self, object key) except -1
    @cython.locals(node=int)
    cdef int new(self) except -1
    @cython.locals(parent=int)
    cpdef void leave(self, int node) except *
    @cython.locals(parent=int, tag=int)
    cdef void unlink(self, int node) except *
    @cython.locals(bucket=int, other=int)
    cdef void leave_bucket(self, int node) except *
    cdef void rest(self, int group, int page, int node) except *
    cdef void wake(self, int group, int page, int node) except *
    cpdef int ancestor(self, int node, int steps) except -1
    @cython.locals(group=int, count=int)
    cpdef int copies(self, int node) except -1
    cpdef void reserve(self, long long count) except *
    @cython.locals(old="long long", count="long long")
    cdef void grow(self) except *
    @cython.locals(bucket=int, node=int, place=int)
    cdef void move(self, int[::1] buckets, int[::1] following) except *
