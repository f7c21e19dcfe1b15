/* The records of several batches as the buffers of Arrow columns. */
#include "native.h"

/* What the rows of all areas need. */
typedef struct {
    int64_t rows, key_bytes, value_bytes, headers, name_bytes, header_value_bytes;
    int null_keys, null_values, null_header_values;
} Sizes;

/* A variable-size column being filled: offsets (int32), data, and a bitmap where something is null. */
typedef struct {
    PyObject *offsets_object, *data_object, *bitmap_object;
    uint8_t *offsets, *data, *bitmap;
    int64_t rows, used, room, row_room;
} Column;

typedef struct {
    Column keys, values, names, header_values;
    PyObject *offsets_object, *stamps_object, *lists_object;
    uint8_t *offsets, *stamps, *lists;
    int64_t rows, row_room;
} Table;

/* Which offsets are wanted: [from, to). */
typedef struct {
    int64_t from, to;
} Range;

static int measure(const Area *area, Range range, Sizes *sizes, Fault *fault) {
    RecordCursor cursor = RECORD_CURSOR_START;
    Record record;
    while (cursor.index < area->count) {
        if (next_record(area, &cursor, &record, fault))
            return -1;
        if (record.offset < range.from || record.offset >= range.to)
            continue;
        sizes->rows++;
        sizes->key_bytes += record.key_size > 0 ? record.key_size : 0;
        sizes->null_keys |= record.key_size < 0;
        sizes->value_bytes += record.value_size > 0 ? record.value_size : 0;
        sizes->null_values |= record.value_size < 0;
        int64_t pos = record.headers, number;
        for (int64_t i = 0; i < record.header_count; i++) {
            Header header;
            const char *what;
            if (next_header(area, &pos, cursor.pos, &header, &what, &number)) {
                FAULT(fault, "the records changed while they were read");
                return -1;
            }
            sizes->headers++;
            sizes->name_bytes += header.name_size;
            sizes->header_value_bytes += header.value_size > 0 ? header.value_size : 0;
            sizes->null_header_values |= header.value_size < 0;
        }
    }
    return end_of_records(area, &cursor, fault);
}

static void put_i32(uint8_t *buffer, int64_t index, int64_t value) {
    int32_t small = (int32_t)value;
    memcpy(buffer + 4 * index, &small, 4);
}
static void put_i64(uint8_t *buffer, int64_t index, int64_t value) { memcpy(buffer + 8 * index, &value, 8); }

static int add(Column *column, const uint8_t *data, int64_t size) {
    int64_t kept = size > 0 ? size : 0;
    if (column->rows >= column->row_room || kept > column->room - column->used || (size < 0 && !column->bitmap))
        return -1;
    if (kept)
        memcpy(column->data + column->used, data, (size_t)kept);
    column->used += kept;
    if (column->bitmap && size >= 0)
        column->bitmap[column->rows >> 3] |= (uint8_t)(1 << (column->rows & 7));
    put_i32(column->offsets, ++column->rows, column->used);
    return 0;
}

static int fill(const Area *area, Range range, Table *table, Fault *fault) {
    RecordCursor cursor = RECORD_CURSOR_START;
    Record record;
    while (cursor.index < area->count) {
        if (next_record(area, &cursor, &record, fault))
            return -1;
        if (record.offset < range.from || record.offset >= range.to)
            continue;
        if (table->rows >= table->row_room || add(&table->keys, area->data + record.key, record.key_size) ||
            add(&table->values, area->data + record.value, record.value_size))
            goto changed;
        put_i64(table->offsets, table->rows, record.offset);
        put_i64(table->stamps, table->rows, record.timestamp);
        int64_t pos = record.headers, number;
        for (int64_t i = 0; i < record.header_count; i++) {
            Header header;
            const char *what;
            if (next_header(area, &pos, cursor.pos, &header, &what, &number) ||
                add(&table->names, area->data + header.name, header.name_size) ||
                add(&table->header_values, area->data + header.value, header.value_size))
                goto changed;
        }
        put_i32(table->lists, ++table->rows, table->names.rows);
    }
    return 0;
changed:
    FAULT(fault, "the records changed while they were read");
    return -1;
}

static int make(PyObject **object, uint8_t **bytes, int64_t size) {
    *object = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (*object == NULL)
        return -1;
    *bytes = (uint8_t *)PyBytes_AsString(*object);
    return 0;
}

static int make_column(Column *column, int64_t rows, int64_t bytes, int nulls) {
    column->row_room = rows;
    column->room = bytes;
    if (make(&column->offsets_object, &column->offsets, 4 * (rows + 1)) ||
        make(&column->data_object, &column->data, bytes))
        return -1;
    put_i32(column->offsets, 0, 0);
    if (!nulls)
        return 0;
    if (make(&column->bitmap_object, &column->bitmap, (rows + 7) / 8))
        return -1;
    memset(column->bitmap, 0, (size_t)((rows + 7) / 8));
    return 0;
}

static int make_table(Table *table, const Sizes *sizes) {
    if (sizes->rows >= INT32_MAX || sizes->key_bytes > INT32_MAX || sizes->value_bytes > INT32_MAX ||
        sizes->headers >= INT32_MAX || sizes->name_bytes > INT32_MAX || sizes->header_value_bytes > INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a column of more than 2^31 - 1 bytes or rows");
        return -1;
    }
    table->row_room = sizes->rows;
    if (make_column(&table->keys, sizes->rows, sizes->key_bytes, sizes->null_keys) ||
        make_column(&table->values, sizes->rows, sizes->value_bytes, sizes->null_values) ||
        make_column(&table->names, sizes->headers, sizes->name_bytes, 0) ||
        make_column(&table->header_values, sizes->headers, sizes->header_value_bytes, sizes->null_header_values) ||
        make(&table->offsets_object, &table->offsets, 8 * sizes->rows) ||
        make(&table->stamps_object, &table->stamps, 8 * sizes->rows) ||
        make(&table->lists_object, &table->lists, 4 * (sizes->rows + 1)))
        return -1;
    put_i32(table->lists, 0, 0);
    return 0;
}

static void drop_column(Column *column) {
    Py_CLEAR(column->offsets_object);
    Py_CLEAR(column->data_object);
    Py_CLEAR(column->bitmap_object);
}

static void drop_table(Table *table) {
    drop_column(&table->keys);
    drop_column(&table->values);
    drop_column(&table->names);
    drop_column(&table->header_values);
    Py_CLEAR(table->offsets_object);
    Py_CLEAR(table->stamps_object);
    Py_CLEAR(table->lists_object);
}

static PyObject *column_tuple(const Column *column) {
    return Py_BuildValue("(OOO)", column->bitmap_object ? column->bitmap_object : Py_None, column->offsets_object,
                         column->data_object);
}

static PyObject *table_tuple(const Table *table) {
    return Py_BuildValue("(LNNOOONN)", (long long)table->row_room, column_tuple(&table->keys),
                         column_tuple(&table->values), table->offsets_object, table->stamps_object,
                         table->lists_object, column_tuple(&table->names), column_tuple(&table->header_values));
}

/* One area from its tuple; the buffer stays held until the caller lets it go. */
static int read_area(PyObject *item, Py_buffer *buffer, Area *area) {
    Py_ssize_t start, end;
    long long count, base_offset, last_delta, base_timestamp;
    int fixed;
    if (!PyTuple_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "an area is a tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(item, "y*nnLLLLp", buffer, &start, &end, &count, &base_offset, &last_delta, &base_timestamp,
                          &fixed))
        return -1;
    if (start < 0 || end < start || end > buffer->len) {
        PyErr_Format(PyExc_ValueError, "[%zd, %zd) is not within %zd bytes", start, end, buffer->len);
        PyBuffer_Release(buffer);
        return -1;
    }
    *area = (Area){(const uint8_t *)buffer->buf + start, end - start, count, base_offset,
                   last_delta, base_timestamp, fixed};
    return 0;
}

static PyObject *convert(PyObject *module, const Area *areas, Py_ssize_t count, Range range) {
    Sizes sizes = {0};
    Table table;
    Fault fault = {""};
    Py_ssize_t i = 0;
    int wrong = 0;
    PyObject *result = NULL;
    memset(&table, 0, sizeof table);
    Py_BEGIN_ALLOW_THREADS
    while (i < count && !(wrong = measure(&areas[i], range, &sizes, &fault)))
        i++;
    Py_END_ALLOW_THREADS
    if (!wrong) {
        if (make_table(&table, &sizes)) {
            drop_table(&table);
            return NULL;
        }
        Py_BEGIN_ALLOW_THREADS
        for (i = 0; i < count && !wrong; i++)
            wrong = fill(&areas[i], range, &table, &fault);
        Py_END_ALLOW_THREADS
        if (!wrong && table.rows != table.row_room) {
            FAULT(&fault, "the records changed while they were read");
            wrong = -1;
        }
    }
    if (wrong) {
        char text[300];
        snprintf(text, sizeof text, "batch at offset %lld: %s", i < count ? (long long)areas[i].base_offset : -1LL,
                 fault.text);
        raise_corrupt(module, text);
    } else {
        result = table_tuple(&table);
    }
    drop_table(&table);
    return result;
}

PyObject *native_columns(PyObject *module, PyObject *args) {
    PyObject *list, *result = NULL;
    long long from, to;
    if (!PyArg_ParseTuple(args, "OLL", &list, &from, &to))
        return NULL;
    if (!PyList_Check(list)) {
        PyErr_SetString(PyExc_TypeError, "areas are a list");
        return NULL;
    }
    Py_ssize_t count = PyList_Size(list), held = 0;
    Area *areas = PyMem_Malloc(sizeof(Area) * (size_t)(count ? count : 1));
    Py_buffer *buffers = PyMem_Malloc(sizeof(Py_buffer) * (size_t)(count ? count : 1));
    if (areas == NULL || buffers == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (; held < count; held++)
        if (read_area(PyList_GetItem(list, held), &buffers[held], &areas[held]))
            goto done;
    result = convert(module, areas, count, (Range){from, to});
done:
    while (held > 0)
        PyBuffer_Release(&buffers[--held]);
    PyMem_Free(areas);
    PyMem_Free(buffers);
    return result;
}
