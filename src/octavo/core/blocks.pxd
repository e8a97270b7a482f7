cimport cython
from octavo.core.arena cimport copy, count_up
from octavo.core.groups cimport Group
from octavo.core.moves cimport Moves
from octavo.core.rows cimport Pass, Places, Rows
from octavo.core.sequences cimport Parts

cdef class StepBlocks(Moves):
    cdef public int[::1] target
    cdef public object zeros
    @cython.locals(at="long long", group=Group)
    cdef Py_ssize_t section(self, int number, long long count, long long tokens) except -1
    cdef Py_ssize_t block_size(self, long long count, long long tokens) except -1
    @cython.locals(group=Group, at="long long", i=int)
    cdef void begin_crosses(self, Pass step, Rows rows) except *
    @cython.locals(block="int[::1]", n=int, tokens="long long", wants="long long", group=Group, at="long long", i=int, row=int, end=int)
    cdef void fill(self, Pass step, Rows rows) except *
    @cython.locals(block="int[::1]", data="int[::1]", n=int, first="long long", query="long long", ids="long long", positions="long long", at="long long", i=int, j=int, row=int, start=int, end=int, known=int, count=int, there=int, begin="long long", wants=bint)
    cdef void fill_tokens(self, Pass step, Rows rows) except *
    @cython.locals(table="int[::1]", size=int, i=int, row=int, position=int, end=int, begin="long long", column=int, base=int, stop=int)
    cdef void fill_slots(self, Group group, int[::1] block, long long at, Rows rows) except *
    @cython.locals(parts=int, targets="long long", i=int, row=int, column=int, part=int, back=int)
    cdef void fill_states(self, Group group, int[::1] block, long long at, Rows rows) except *
    @cython.locals(block="int[::1]", start="int[::1]", place="int[::1]", found="int[::1]", begin="long long[::1]", n=int, m=int, first=int, total="long long", i=int, j=int, back=int, end=int, at="long long", other=Pass)
    cpdef object unknown(self, Pass step, list earlier)
    @cython.locals(counts="long long", place=int)
    cpdef list gone(self, Pass step)
    cdef bint is_row(self, Pass step, int place) except -1
    @cython.locals(at="long long")
    cpdef object slots(self, Pass step, int number)
    @cython.locals(group=Group, n=int, parts=int, units=int, at="long long", targets="long long", stop="long long")
    cpdef tuple state_units(self, Pass step, int number)
    @cython.locals(at="long long", n=int)
    cpdef tuple cross_inputs(self, Pass step, int number)
    @cython.locals(at="long long", before=int)
    cpdef object taken(self, Pass step, int number)
    @cython.locals(group=Group, n=int, lengths="long long", width=int, i=int)
    cpdef object gather(self, Pass step, int number)
    @cython.locals(data="int[::1]", n=int, first=int, i=int, row=int, columns=int, column=int, begin="long long", at="long long")
    cdef void gather_rows(self, int[::1] table, Pass step, Group group, int width, long long lengths) except *
    @cython.locals(log="int[::1]", at=Py_ssize_t)
    cpdef object delta(self, Pass step, int number)
    @cython.locals(columns=int, row=int, column=int)
    cdef void list_row(self, Pass step, Group group, int place, int width, list found) except *
