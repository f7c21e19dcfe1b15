/* Arrow's buffers to record batches: rows of a key and a value column, as many as fit. */
#include "native.h"

/* A binary column: `width` 4 or 8 bytes an offset; rows count from `first`. `data` NULL: every row is null. */
typedef struct {
    Py_buffer bitmap_buffer, offsets_buffer, data_buffer;
    const uint8_t *bitmap, *offsets, *data;
    int64_t bitmap_size, offsets_size, data_size, first;
    int width, held, there;
} Binary;

/* None, or (bitmap or None, offsets, data, first, width). */
static int read_binary(PyObject *item, Binary *column) {
    PyObject *bitmap;
    Py_ssize_t first;
    memset(column, 0, sizeof *column);
    if (item == Py_None)
        return 0;
    if (!PyTuple_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "a column is a tuple or None");
        return -1;
    }
    if (!PyArg_ParseTuple(item, "Oy*y*ni", &bitmap, &column->offsets_buffer, &column->data_buffer, &first,
                          &column->width))
        return -1;
    column->held = 2;
    if (bitmap != Py_None) {
        if (PyObject_GetBuffer(bitmap, &column->bitmap_buffer, PyBUF_SIMPLE))
            return -1;
        column->held = 3;
        column->bitmap = column->bitmap_buffer.buf;
        column->bitmap_size = column->bitmap_buffer.len;
    }
    if (first < 0 || (column->width != 4 && column->width != 8)) {
        PyErr_SetString(PyExc_ValueError, "a column begins at row 0 or later, its offsets take 4 or 8 bytes");
        return -1;
    }
    column->there = 1;
    column->offsets = column->offsets_buffer.buf;
    column->offsets_size = column->offsets_buffer.len;
    column->data = column->data_buffer.buf;
    column->data_size = column->data_buffer.len;
    column->first = first;
    return 0;
}

static void let_go(Binary *column) {
    if (column->held > 2)
        PyBuffer_Release(&column->bitmap_buffer);
    if (column->held > 1) {
        PyBuffer_Release(&column->offsets_buffer);
        PyBuffer_Release(&column->data_buffer);
    }
    column->held = 0;
}

static int64_t offset_at(const Binary *column, int64_t index) {
    if (column->width == 4) {
        int32_t small;
        memcpy(&small, column->offsets + 4 * index, 4);
        return small;
    }
    int64_t wide;
    memcpy(&wide, column->offsets + 8 * index, 8);
    return wide;
}

/* The row's bytes; size -1 for null. -1 when the buffers do not hold it. */
static int cell(const Binary *column, int64_t row, const uint8_t **data, int64_t *size) {
    *size = -1;
    *data = NULL;
    if (!column->there)
        return 0;
    int64_t index = column->first + row;
    if (column->bitmap) {
        if (index >> 3 >= column->bitmap_size)
            return -1;
        if (!(column->bitmap[index >> 3] >> (index & 7) & 1))
            return 0;
    }
    if (index + 1 >= column->offsets_size / column->width)
        return -1;
    int64_t begin = offset_at(column, index), end = offset_at(column, index + 1);
    if (begin < 0 || end < begin || end > column->data_size)
        return -1;
    *data = column->data + begin;
    *size = end - begin;
    return 0;
}

/* What rows become records with. */
typedef struct {
    Binary keys, values;
    Py_buffer stamps_buffer, prefix, more;
    const uint8_t *stamps;
    int64_t stamps_size, stamp;
} Rows;

typedef struct {
    const uint8_t *key, *value;
    int64_t key_size, value_size, delta, body;
} Item;

/* How far the rows of one batch go. */
typedef struct {
    int64_t next, total, base, latest;
} Extent;

static int stamp_at(const Rows *rows, int64_t row, int64_t *stamp) {
    if (rows->stamps == NULL) {
        *stamp = rows->stamp;
        return 0;
    }
    if (row >= rows->stamps_size / 8)
        return -1;
    memcpy(stamp, rows->stamps + 8 * row, 8);
    return 0;
}

static int read_item(const Rows *rows, int64_t row, int64_t index, int64_t base, Item *item, Fault *fault) {
    int64_t stamp;
    if (cell(&rows->keys, row, &item->key, &item->key_size) ||
        cell(&rows->values, row, &item->value, &item->value_size) || stamp_at(rows, row, &stamp)) {
        FAULT(fault, "row %lld lies outside of its column's buffers", (long long)row);
        return -1;
    }
    if (__builtin_sub_overflow(stamp, base, &item->delta)) {
        FAULT(fault, "row %lld: its timestamp is more than 64 bits from the batch's first", (long long)row);
        return -1;
    }
    int64_t value = item->value_size < 0 ? -1 : item->value_size + rows->prefix.len;
    item->body = 1 + varint_size(item->delta) + varint_size(index) + varint_size(item->key_size) +
                 (item->key_size > 0 ? item->key_size : 0) + varint_size(value) + (value > 0 ? value : 0) +
                 rows->more.len;
    return 0;
}

static int plan(const Rows *rows, int64_t first, int64_t last, int64_t max_size, Extent *extent, Fault *fault) {
    Item item;
    int64_t row = first, total = HEADER_SIZE;
    if (stamp_at(rows, first, &extent->base)) {
        FAULT(fault, "row %lld lies outside of its column's buffers", (long long)first);
        return -1;
    }
    extent->latest = extent->base;
    for (; row < last && row - first < INT32_MAX; row++) {
        if (read_item(rows, row, row - first, extent->base, &item, fault))
            return -1;
        int64_t size = varint_size(item.body) + item.body;
        if (row > first && total + size > max_size)
            break;
        if (total + size > INT32_MAX) {
            FAULT(fault, "row %lld: a record of %lld bytes is too large for a batch", (long long)row, (long long)size);
            return -1;
        }
        total += size;
        if (extent->base + item.delta > extent->latest)
            extent->latest = extent->base + item.delta;
    }
    extent->next = row;
    extent->total = total;
    return 0;
}

static int write_rows(const Rows *rows, int64_t first, const Extent *extent, uint8_t *to, Fault *fault) {
    uint8_t *end = to + extent->total;
    Item item;
    memset(to, 0, HEADER_SIZE);
    to += HEADER_SIZE;
    for (int64_t row = first; row < extent->next; row++) {
        if (read_item(rows, row, row - first, extent->base, &item, fault))
            return -1;
        if (varint_size(item.body) + item.body > end - to) {
            FAULT(fault, "the rows changed while they were read");
            return -1;
        }
        to = put_varint(to, item.body);
        *to++ = 0;
        to = put_varint(to, item.delta);
        to = put_varint(to, row - first);
        to = put_varint(to, item.key_size);
        if (item.key_size > 0) {
            memcpy(to, item.key, (size_t)item.key_size);
            to += item.key_size;
        }
        if (item.value_size < 0) {
            to = put_varint(to, -1);
        } else {
            to = put_varint(to, item.value_size + rows->prefix.len);
            if (rows->prefix.len)
                memcpy(to, rows->prefix.buf, (size_t)rows->prefix.len);
            to += rows->prefix.len;
            if (item.value_size)
                memcpy(to, item.value, (size_t)item.value_size);
            to += item.value_size;
        }
        memcpy(to, rows->more.buf, (size_t)rows->more.len);
        to += rows->more.len;
    }
    if (to != end) {
        FAULT(fault, "the rows changed while they were read");
        return -1;
    }
    return 0;
}

static PyObject *encode(const Rows *rows, int64_t first, int64_t last, int64_t max_size, Py_ssize_t room) {
    Extent extent;
    Fault fault = {""};
    int wrong;
    Py_BEGIN_ALLOW_THREADS
    wrong = plan(rows, first, last, max_size, &extent, &fault);
    Py_END_ALLOW_THREADS
    PyObject *batch = wrong ? NULL : PyByteArray_FromStringAndSize(NULL, room + (Py_ssize_t)extent.total);
    if (batch != NULL) {
        uint8_t *to = (uint8_t *)PyByteArray_AsString(batch);
        Py_BEGIN_ALLOW_THREADS
        memset(to, 0, (size_t)room);
        wrong = write_rows(rows, first, &extent, to + room, &fault);
        Py_END_ALLOW_THREADS
    }
    if (wrong) {
        Py_XDECREF(batch);
        PyErr_SetString(PyExc_ValueError, fault.text);
        return NULL;
    }
    if (batch == NULL)
        return NULL;
    return Py_BuildValue("(NLLL)", batch, (long long)extent.next, (long long)extent.base, (long long)extent.latest);
}

PyObject *native_encode_columns(PyObject *module, PyObject *args) {
    PyObject *keys, *values, *stamps, *result = NULL;
    long long first, last, max_size, stamp;
    Py_ssize_t room = 0;
    Rows rows;
    (void)module;
    memset(&rows, 0, sizeof rows);
    if (!PyArg_ParseTuple(args, "OOOLy*y*LLL|n", &keys, &values, &stamps, &stamp, &rows.prefix, &rows.more, &first,
                          &last, &max_size, &room))
        return NULL;
    rows.stamp = stamp;
    if (read_binary(keys, &rows.keys) || read_binary(values, &rows.values))
        goto done;
    if (stamps != Py_None) {
        if (PyObject_GetBuffer(stamps, &rows.stamps_buffer, PyBUF_SIMPLE))
            goto done;
        rows.stamps = rows.stamps_buffer.buf;
        rows.stamps_size = rows.stamps_buffer.len;
    }
    if (first < 0 || first >= last || last > INT64_MAX / 16) {
        PyErr_Format(PyExc_ValueError, "rows [%lld, %lld) make no batch", first, last);
        goto done;
    }
    if (room < 0 || room > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "room of %zd bytes", room);
        goto done;
    }
    result = encode(&rows, first, last, max_size, room);
done:
    if (rows.stamps != NULL)
        PyBuffer_Release(&rows.stamps_buffer);
    let_go(&rows.keys);
    let_go(&rows.values);
    PyBuffer_Release(&rows.prefix);
    PyBuffer_Release(&rows.more);
    return result;
}

/* Fills in the header in front of a batch's records, CRC last. */
PyObject *native_seal(PyObject *module, PyObject *args) {
    Py_buffer batch;
    long long base_offset, base_timestamp, max_timestamp, producer_id;
    int leader_epoch, attributes, last_delta, producer_epoch, base_sequence, count;
    (void)module;
    if (!PyArg_ParseTuple(args, "w*LiiiLLLiii", &batch, &base_offset, &leader_epoch, &attributes, &last_delta,
                          &base_timestamp, &max_timestamp, &producer_id, &producer_epoch, &base_sequence, &count))
        return NULL;
    if (batch.len < HEADER_SIZE || batch.len - LENGTH_OVERHEAD > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "a record batch has %d bytes of header and at most 2^31 in all, not %zd",
                     HEADER_SIZE, batch.len);
        PyBuffer_Release(&batch);
        return NULL;
    }
    uint8_t *p = batch.buf;
    put_u64(p, (uint64_t)base_offset);
    put_u32(p + 8, (uint32_t)(batch.len - LENGTH_OVERHEAD));
    put_u32(p + 12, (uint32_t)leader_epoch);
    p[16] = MAGIC;
    put_u16(p + 21, (uint16_t)attributes);
    put_u32(p + 23, (uint32_t)last_delta);
    put_u64(p + 27, (uint64_t)base_timestamp);
    put_u64(p + 35, (uint64_t)max_timestamp);
    put_u64(p + 43, (uint64_t)producer_id);
    put_u16(p + 51, (uint16_t)producer_epoch);
    put_u32(p + 53, (uint32_t)base_sequence);
    put_u32(p + 57, (uint32_t)count);
    uint32_t crc;
    Py_BEGIN_ALLOW_THREADS
    crc = crc32c_extend(0, p + CRC_FROM, (size_t)(batch.len - CRC_FROM));
    Py_END_ALLOW_THREADS
    put_u32(p + CRC_AT, crc);
    PyBuffer_Release(&batch);
    return Py_NewRef(Py_None);
}

/* Kafka's murmur2 (Utils.murmur2), seed 0x9747b28c. */
static uint32_t murmur2(const uint8_t *p, int64_t size) {
    const uint32_t m = 0x5BD1E995u;
    uint32_t h = 0x9747B28Cu ^ (uint32_t)size;
    for (; size >= 4; size -= 4, p += 4) {
        uint32_t k = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        k *= m;
        k ^= k >> 24;
        h = h * m ^ k * m;
    }
    if (size > 0) {
        uint32_t k = p[0];
        if (size > 1)
            k |= (uint32_t)p[1] << 8;
        if (size > 2)
            k |= (uint32_t)p[2] << 16;
        h = (h ^ k) * m;
    }
    h ^= h >> 13;
    h *= m;
    return h ^ h >> 15;
}

PyObject *native_partitions(PyObject *module, PyObject *args) {
    PyObject *item, *result = NULL;
    Py_ssize_t rows, bad = -1;
    int partitions;
    Binary keys;
    (void)module;
    if (!PyArg_ParseTuple(args, "Oni", &item, &rows, &partitions))
        return NULL;
    if (read_binary(item, &keys))
        goto done;
    if (rows < 0 || rows > PY_SSIZE_T_MAX / 16 || partitions < 1) {
        PyErr_SetString(PyExc_ValueError, "rows are 0 or more, partitions 1 or more");
        goto done;
    }
    result = PyBytes_FromStringAndSize(NULL, rows * 4);
    if (result == NULL)
        goto done;
    uint8_t *to = (uint8_t *)PyBytes_AsString(result);
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t row = 0; row < rows && bad < 0; row++) {
        const uint8_t *key;
        int64_t size;
        if (cell(&keys, row, &key, &size)) {
            bad = row;
            break;
        }
        int32_t chosen = size < 0 ? -1 : (int32_t)((murmur2(key, size) & 0x7FFFFFFF) % (uint32_t)partitions);
        memcpy(to + 4 * row, &chosen, 4);
    }
    Py_END_ALLOW_THREADS
    if (bad >= 0) {
        Py_CLEAR(result);
        PyErr_Format(PyExc_ValueError, "row %zd lies outside of its column's buffers", bad);
    }
done:
    let_go(&keys);
    return result;
}
