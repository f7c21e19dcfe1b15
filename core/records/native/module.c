/* The module: its functions by name, and the error they raise. */
#include "native.h"

typedef struct {
    PyObject *corrupt;
} State;

PyObject *raise_corrupt(PyObject *module, const char *text) {
    State *state = PyModule_GetState(module);
    PyErr_SetString(state->corrupt, text);
    return NULL;
}

static int prepare(PyObject *module) {
    State *state = PyModule_GetState(module);
    PyObject *errors = PyImport_ImportModule("klamm.core.errors");
    if (errors == NULL)
        return -1;
    state->corrupt = PyObject_GetAttrString(errors, "CorruptRecordError");
    Py_DECREF(errors);
    crc32c_prepare();
    return state->corrupt == NULL ? -1 : 0;
}

static int traverse(PyObject *module, visitproc visit, void *arg) {
    State *state = PyModule_GetState(module);
    Py_VISIT(state->corrupt);
    return 0;
}

static int clear(PyObject *module) {
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->corrupt);
    return 0;
}

static PyMethodDef methods[] = {
    {"crc32c", native_crc32c, METH_VARARGS, NULL},
    {"chain", native_chain, METH_VARARGS, NULL},
    {"pieces", native_pieces, METH_VARARGS, NULL},
    {"lists", native_lists, METH_VARARGS, NULL},
    {"validate", native_validate, METH_VARARGS, NULL},
    {"columns", native_columns, METH_VARARGS, NULL},
    {"window_counts", native_window_counts, METH_VARARGS, NULL},
    {"tally", native_tally, METH_VARARGS, NULL},
    {"int64s", native_int64s, METH_O, NULL},
    {"sizes", native_sizes, METH_VARARGS, NULL},
    {"lengths", native_lengths, METH_VARARGS, NULL},
    {"first_headers", native_first_headers, METH_O, NULL},
    {"add_headers", native_add_headers, METH_VARARGS, NULL},
    {"encode_records", native_encode_records, METH_VARARGS, NULL},
    {"encode_columns", native_encode_columns, METH_VARARGS, NULL},
    {"seal", native_seal, METH_VARARGS, NULL},
    {"partitions", native_partitions, METH_VARARGS, NULL},
    {"read_fast_produce_request", native_read_fast_produce_request, METH_O, NULL},
    {"write_fast_produce_response", (PyCFunction)(void (*)(void))native_write_fast_produce_response, METH_FASTCALL,
     NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, prepare}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_native", .m_doc = "Record batches to columns and back; see fallback.py.",
    .m_size = sizeof(State), .m_methods = methods, .m_slots = slots, .m_traverse = traverse, .m_clear = clear,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
