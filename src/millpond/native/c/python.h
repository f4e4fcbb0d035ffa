/* The part of Python's stable interface that is used here: no header of Python is needed to compile it, and one library works for every
   Python.  The caller of each of these holds Python's lock. */

#ifndef MILLPOND_PYTHON_H
#define MILLPOND_PYTHON_H

#include <stdint.h>

/* Nothing here looks inside an object. */
typedef struct {
    intptr_t unused;
} PyObject;
extern PyObject *PyBytes_FromStringAndSize(const char *data, intptr_t size);
extern PyObject *Py_BuildValue(const char *format, ...);
extern char *PyOS_double_to_string(double value, char format, int precision, int flags, int *type);
extern void PyMem_Free(void *at);
enum { ADD_DOT_0 = 2 };

extern void Py_IncRef(PyObject *object);
extern void Py_DecRef(PyObject *object);
extern void PyErr_Clear(void);

extern PyObject *PyCapsule_New(void *at, const char *name, void (*end)(PyObject *));
extern void *PyCapsule_GetPointer(PyObject *capsule, const char *name);
extern int PyCapsule_IsValid(PyObject *capsule, const char *name);

typedef struct {
    const char *name;
    PyObject *(*call)(PyObject *self, PyObject *const *given, intptr_t count);
    int flags;
    const char *doc;
} PyMethodDef;
extern PyObject *PyCFunction_NewEx(PyMethodDef *method, PyObject *self, PyObject *module);
enum { METH_FASTCALL = 0x80, SLOT_NEW = 65 };

extern PyObject *PyLong_FromLongLong(long long value);
extern long long PyLong_AsLongLongAndOverflow(PyObject *object, int *overflow);
extern PyObject *PyBool_FromLong(long value);
extern PyObject *PyFloat_FromDouble(double value);
extern PyObject *PyUnicode_DecodeUTF8(const char *text, intptr_t size, const char *errors);
extern const char *PyUnicode_AsUTF8AndSize(PyObject *object, intptr_t *size);
extern int PyBytes_AsStringAndSize(PyObject *object, char **data, intptr_t *size);
extern char *PyByteArray_AsString(PyObject *object);
extern intptr_t PyByteArray_Size(PyObject *object);
extern PyObject *PyTuple_New(intptr_t size);
extern int PyTuple_SetItem(PyObject *tuple, intptr_t place, PyObject *item);
extern PyObject *PyTuple_GetItem(PyObject *tuple, intptr_t place);
extern intptr_t PyDict_Size(PyObject *dict);
extern PyObject *PyDict_GetItemWithError(PyObject *dict, PyObject *key);
extern int PyDict_SetItem(PyObject *dict, PyObject *key, PyObject *value);
extern int PyObject_SetAttr(PyObject *object, PyObject *name, PyObject *value);
extern PyObject *PyObject_Type(PyObject *object);
extern void *PyType_GetSlot(PyObject *type, int slot);
extern PyObject PyUnicode_Type, PyLong_Type, PyBytes_Type, PyByteArray_Type, PyDict_Type, _Py_NoneStruct, _Py_FalseStruct;

#endif
