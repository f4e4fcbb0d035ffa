/* Joins pieces of a buffer, or copies each to bytes of its own. */

#include "native.h"

/* Join pieces in `out`; 0, or -1 if one lies outside the buffer.
   room:     the bytes of all pieces
   offsets:  output: where each piece begins in `out` and where the last one ends, below 2 GiB; or NULL */
int32_t gather(const byte *data, int64_t total, int64_t count, const int64_t *begin, const int64_t *size, byte *out, int64_t room,
               int32_t *offsets) {
    const byte *end = out + room;
    if (offsets && room > INT32_MAX) return -1;
    if (offsets) *offsets++ = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!is_inside(total, begin[i], size[i]) || size[i] > end - out) return -1;
        copy_short(out, data + begin[i], size[i], end, data + total);
        out += size[i];
        if (offsets) offsets[i] = (int32_t)(room - (end - out));
    }
    return 0;
}

/* Of Python's stable interface: the caller of `to_list` holds Python's lock. */
typedef struct PyObject PyObject;
extern PyObject *PyBytes_FromStringAndSize(const char *data, intptr_t size);
extern char *PyBytes_AsString(PyObject *bytes);
extern PyObject *PyList_New(intptr_t size);
extern int PyList_SetItem(PyObject *list, intptr_t at, PyObject *item);

extern PyObject *PyExc_IndexError;
extern void PyErr_SetString(PyObject *type, const char *message);

/* A list of bytes, each followed by the tail; NULL with an exception set if that fails. */
PyObject *to_list(const byte *data, int64_t total, int64_t count, const int64_t *begin, const int64_t *size, const byte *tail,
                  int64_t tail_size) {
    PyObject *list = PyList_New((intptr_t)count);
    for (int64_t i = 0; list && i < count; i++) {
        if (!is_inside(total, begin[i], size[i])) {
            PyErr_SetString(PyExc_IndexError, "a piece lies outside of its buffer");
            return 0;
        }
        PyObject *piece = PyBytes_FromStringAndSize(tail_size ? 0 : (const char *)data + begin[i], (intptr_t)(size[i] + tail_size));
        if (!piece) return 0; /* the list leaks, but memory has run out anyway */
        if (tail_size) {
            char *to = PyBytes_AsString(piece);
            memcpy(to, data + begin[i], (size_t)size[i]);
            memcpy(to + size[i], tail, (size_t)tail_size);
        }
        PyList_SetItem(list, (intptr_t)i, piece);
    }
    return list;
}
