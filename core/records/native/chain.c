/* The chain of batch headers in a stretch of a log. */
#include "native.h"

#define MAX_EPOCHS 64

typedef struct {
    int64_t count, end, first_offset, next_offset, max_timestamp, last_at;
    int64_t epochs[MAX_EPOCHS][2];
    int epoch_count;
} Chain;

/* The batch at `pos`, of which `left` bytes are there, against what comes before it. Its size; 0 when it is cut off;
 * -1 with a fault. */
static int64_t check_batch(const uint8_t *p, int64_t pos, int64_t left, int64_t expected, int dense, int verify, Chain *chain,
                    Fault *fault) {
    int64_t base = get_i64(p), size = (int64_t)get_i32(p + 8) + LENGTH_OVERHEAD;
    int64_t last_delta = get_i32(p + 23), count = get_i32(p + 57), epoch = get_i32(p + 12);
    int magic = (int8_t)p[16];
    if (magic != MAGIC) {
        FAULT(fault, "byte %lld: the batch at offset %lld has magic %d, not 2", (long long)pos, (long long)base, magic);
        return -1;
    }
    if (size < HEADER_SIZE) {
        FAULT(fault, "byte %lld: the batch at offset %lld has the length %lld", (long long)pos, (long long)base,
              (long long)(size - LENGTH_OVERHEAD));
        return -1;
    }
    if (size > left)
        return 0;
    if (base < 0 || (expected >= 0 && (base < expected || (dense && base != expected)))) {
        FAULT(fault, "byte %lld: a batch begins at offset %lld, %s%lld is expected", (long long)pos, (long long)base,
              dense && expected >= 0 ? "" : "at least ", (long long)(expected < 0 ? 0 : expected));
        return -1;
    }
    if (last_delta < 0 || count < 0 || count - 1 > last_delta || base > INT64_MAX - 1 - last_delta) {
        FAULT(fault, "byte %lld: the batch at offset %lld says that it holds %lld records, the last offset delta is %lld",
              (long long)pos, (long long)base, (long long)count, (long long)last_delta);
        return -1;
    }
    if (verify && crc32c_extend(0, p + CRC_FROM, (size_t)(size - CRC_FROM)) != get_u32(p + CRC_AT)) {
        FAULT(fault, "byte %lld: the CRC of the batch at offset %lld does not match its bytes", (long long)pos,
              (long long)base);
        return -1;
    }
    if (chain->epoch_count == 0 || chain->epochs[chain->epoch_count - 1][0] != epoch) {
        if (chain->epoch_count == MAX_EPOCHS) {
            FAULT(fault, "byte %lld: the leader epoch changes for the %dth time", (long long)pos, MAX_EPOCHS);
            return -1;
        }
        chain->epochs[chain->epoch_count][0] = epoch;
        chain->epochs[chain->epoch_count++][1] = base;
    }
    int64_t max_timestamp = get_i64(p + 35);
    if (chain->count++ == 0) {
        chain->first_offset = base;
        chain->max_timestamp = max_timestamp;
    } else if (max_timestamp > chain->max_timestamp) {
        chain->max_timestamp = max_timestamp;
    }
    chain->next_offset = base + last_delta + 1;
    chain->last_at = pos;
    return size;
}

static int follow(const uint8_t *data, int64_t start, int64_t end, int64_t expected, int dense, int verify,
                  Chain *chain, Fault *fault) {
    int64_t pos = start;
    chain->next_offset = expected;
    while (end - pos >= HEADER_SIZE) {
        int64_t size = check_batch(data + pos, pos, end - pos, chain->next_offset, dense, verify, chain, fault);
        if (size < 0)
            return -1;
        if (size == 0)
            break;
        pos += size;
    }
    chain->end = pos;
    return 0;
}

static PyObject *epochs_of(const Chain *chain) {
    PyObject *list = PyList_New(chain->epoch_count);
    for (int i = 0; list != NULL && i < chain->epoch_count; i++) {
        PyObject *pair = Py_BuildValue("(LL)", (long long)chain->epochs[i][0], (long long)chain->epochs[i][1]);
        if (pair == NULL || PyList_SetItem(list, i, pair) < 0) {
            Py_DECREF(list);
            return NULL;
        }
    }
    return list;
}

PyObject *native_chain(PyObject *module, PyObject *args) {
    Py_buffer data;
    Py_ssize_t start, end;
    long long expected;
    int dense, verify, result;
    if (!PyArg_ParseTuple(args, "y*nnLpp", &data, &start, &end, &expected, &dense, &verify))
        return NULL;
    if (start < 0 || end < start || end > data.len) {
        PyErr_Format(PyExc_ValueError, "[%zd, %zd) is not within %zd bytes", start, end, data.len);
        PyBuffer_Release(&data);
        return NULL;
    }
    Chain chain = {.first_offset = -1, .max_timestamp = -1, .last_at = -1};
    Fault fault = {""};
    if (!verify && end - start < (1 << 20)) {
        result = follow(data.buf, start, end, expected, dense, verify, &chain, &fault);
    } else {
        Py_BEGIN_ALLOW_THREADS
        result = follow(data.buf, start, end, expected, dense, verify, &chain, &fault);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&data);
    if (result < 0)
        return raise_corrupt(module, fault.text);
    PyObject *epochs = epochs_of(&chain);
    if (epochs == NULL)
        return NULL;
    return Py_BuildValue("(LLLLLLN)", (long long)chain.count, (long long)chain.end, (long long)chain.first_offset,
                         (long long)chain.next_offset, (long long)chain.max_timestamp, (long long)chain.last_at,
                         epochs);
}

typedef struct {
    int64_t start, base, last, max_timestamp, max_timestamp_last, first_size, first_last, first_max_timestamp;
    PyObject *producers;
} Piece;

/* Appends the piece that ends at `end` to `list`, and takes its list of producers. */
static int add_piece(PyObject *list, Piece *piece, int64_t end) {
    PyObject *item = Py_BuildValue("(LLLLLLLLLN)", (long long)piece->start, (long long)end, (long long)piece->base,
                                   (long long)piece->last, (long long)piece->max_timestamp,
                                   (long long)piece->max_timestamp_last, (long long)piece->first_size,
                                   (long long)piece->first_last, (long long)piece->first_max_timestamp,
                                   piece->producers);
    piece->producers = NULL;
    int result = item == NULL ? -1 : PyList_Append(list, item);
    Py_XDECREF(item);
    return result;
}

static int note_producer(Piece *piece, int64_t pos) {
    PyObject *at = PyLong_FromLongLong(pos);
    int result = at == NULL ? -1 : PyList_Append(piece->producers, at);
    Py_XDECREF(at);
    return result;
}

/* 0 with the batches of `data` in `list`; -1 with an error, or with a fault if its text is set. */
static int split(const uint8_t *data, int64_t size, int64_t room, PyObject *list, Fault *fault) {
    Piece piece = {.start = -1};
    int64_t pos = 0;
    int result = 0;
    while (result == 0 && size - pos >= HEADER_SIZE) {
        const uint8_t *p = data + pos;
        int64_t base = get_i64(p), batch = (int64_t)get_i32(p + 8) + LENGTH_OVERHEAD, latest = get_i64(p + 35);
        int magic = (int8_t)p[16];
        int32_t last_delta = get_i32(p + 23);
        if (magic != MAGIC || batch < HEADER_SIZE || base < 0 || last_delta < 0 || base > INT64_MAX - 1 - last_delta) {
            FAULT(fault, "byte %lld: no batch can have this header", (long long)pos);
            result = -1;
            break;
        }
        if (batch > size - pos)
            break;
        if (piece.start >= 0 && pos + batch - piece.start > room) {
            result = add_piece(list, &piece, pos);
            piece.start = -1;
        }
        if (result == 0 && piece.start < 0) {
            int64_t last = base + last_delta;
            piece = (Piece){pos, base, last, latest, last, batch, last, latest, PyList_New(0)};
            result = piece.producers == NULL ? -1 : 0;
        }
        if (result == 0 && get_i64(p + 43) != -1)
            result = note_producer(&piece, pos);
        piece.last = base + last_delta;
        if (latest > piece.max_timestamp) {
            piece.max_timestamp = latest;
            piece.max_timestamp_last = piece.last;
        }
        pos += batch;
    }
    if (result == 0 && piece.start >= 0)
        result = add_piece(list, &piece, pos);
    Py_XDECREF(piece.producers);
    return result;
}

PyObject *native_pieces(PyObject *module, PyObject *args) {
    Py_buffer data;
    Py_ssize_t room;
    if (!PyArg_ParseTuple(args, "y*n", &data, &room))
        return NULL;
    Fault fault = {""};
    PyObject *list = PyList_New(0);
    if (list != NULL && split(data.buf, data.len, room, list, &fault) < 0)
        Py_CLEAR(list);
    PyBuffer_Release(&data);
    return list == NULL && fault.text[0] ? raise_corrupt(module, fault.text) : list;
}
