cimport cython
from octavo.core.arena cimport copy, fill
from octavo.core.groups cimport Group
from octavo.core.rows cimport Pass
from octavo.core.commits cimport Core

cdef int[::1] NO_INTS
cdef long long[::1] NO_LONGS

@cython.final
cdef class Source:
    cdef readonly int size, ratio, page, window, chunk, lead, number, count, width, most, gone, lost
    cdef public int skip, moved
    cdef readonly long long first, ids, positions, slots, base, tokens, pages, longest, keys
    cdef public long long behind
    cdef readonly bint compact, whole
    cdef readonly int[::1] block, data, end, log
    cdef readonly long long[::1] begin
    cdef public long long[::1] start
    @cython.locals(core=Core, group=Group, n=int, i=int, row=int)
    cpdef void read(self, Pass step, int number) except *
    @cython.locals(i=int)
    cpdef void read_arrays(self, int[::1] block, int count, long long tokens, int[::1] table, long long width) except *
    @cython.locals(i=int)
    cdef void place(self, int count, long long tokens) except *
    @cython.locals(n=int, counts="long long", i=int, keys=int, end=int)
    cdef void measure(self) except *
    @cython.locals(position=int, floor=int)
    cdef int shift(self, int i) except -1
    cdef int new(self, int i) except -1
    cdef bint generates(self, int i) except -1
    cdef int length(self, int i) except -1
    @cython.locals(target=Target)
    cpdef void write(self, list targets, object log, bint whole) except *

cdef class Target:
    cdef int[::1] numbers
    cdef int none
    cdef void write(self, Source source) except *
    cdef void pad(self, Py_ssize_t at, long long none) except *

cdef class Slots(Target):
    cdef void write(self, Source source) except *

cdef class Ids(Target):
    cdef void write(self, Source source) except *

cdef class Positions(Target):
    cdef void write(self, Source source) except *

cdef class Last(Target):
    @cython.locals(n=int)
    cdef void write(self, Source source) except *

cdef class QueryStarts(Target):
    @cython.locals(n=int)
    cdef void write(self, Source source) except *

cdef class Base(Target):
    @cython.locals(i=int, base=int)
    cdef void write(self, Source source) except *

cdef class Keys(Target):
    @cython.locals(i=int)
    cdef void write(self, Source source) except *

cdef class PastKeys(Target):
    @cython.locals(i=int)
    cdef void write(self, Source source) except *

cdef class KeyStarts(Target):
    @cython.locals(i=int, total=int)
    cdef void write(self, Source source) except *

cdef class Requests(Target):
    @cython.locals(i=int)
    cdef void write(self, Source source) except *

cdef class RequestPast(Target):
    @cython.locals(i=int, keys=int)
    cdef void write(self, Source source) except *

cdef class RequestContext(Target):
    @cython.locals(i=int, new=int)
    cdef void write(self, Source source) except *

cdef class LastLengths(Target):
    @cython.locals(i=int, end=int, tokens=int)
    cdef void write(self, Source source) except *

cdef class PageStarts(Target):
    @cython.locals(i=int, total=int)
    cdef void write(self, Source source) except *

cdef class PageTarget(Target):
    cdef int width, scale
    cdef long long row
    cdef Py_ssize_t at(self, Source source, int i) except -1
    cdef int held(self, Source source, int i) except -1
    @cython.locals(same=bint)
    cdef void put_rows(self, Source source, int low, int high) except *
    @cython.locals(numbers="int[::1]", data="int[::1]", i=int, at=Py_ssize_t, stop=Py_ssize_t, behind=Py_ssize_t, start=Py_ssize_t, j=Py_ssize_t)
    cdef void copy_rows(self, Source source, int low, int high) except *
    @cython.locals(numbers="int[::1]", data="int[::1]", ratio=int, none=int, skip=int, i=int, at=Py_ssize_t, stop=Py_ssize_t, column=int, part=int, shift=int, j=Py_ssize_t, moved=int, page=int)
    cdef void convert_rows(self, Source source, int low, int high, Py_ssize_t offset, int more) except *

cdef class Pages(PageTarget):
    @cython.locals(numbers="int[::1]", log="int[::1]", n=int, total="long long", entry=Py_ssize_t, place=int, column=int)
    cdef void write(self, Source source) except *

cdef class Table(PageTarget):
    cdef void write(self, Source source) except *
    @cython.locals(log="int[::1]", entry=Py_ssize_t, place=int, column=int)
    cdef void change(self, Source source, Py_ssize_t rows) except *
    cdef void put(self, Py_ssize_t at, int page) except *

cdef class PageBlocks(Table):
    cdef int more
    cdef void put_rows(self, Source source, int low, int high) except *
    cdef void put(self, Py_ssize_t at, int page) except *
