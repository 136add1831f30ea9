#include "io/npy.h"

#include <string.h>

#include "base/memory.h"
#include "cupola/io.h"
#include "tensor/debug.h"

#define MAGIC "\x93NUMPY"
#define HEADER_MOST 65536

static const struct {
    const char *name;
    cup_dtype dtype;
} types[] = {
    {"<f4", CUP_F32}, {"<f8", CUP_F64}, {"<f2", CUP_F16}, {"<i8", CUP_I64},
    {"<i4", CUP_I32}, {"|u1", CUP_U8},  {"|b1", CUP_BOOL}, {"|i1", CUP_I8},
    {"<V2", CUP_BF16}, {"|V2", CUP_BF16}, /* what ml_dtypes writes */
};

/* The dictionary at the head, as far as it was read. */
typedef struct reader {
    cup__error *error;
    const char *path, *at, *end;
    bool has_type, has_order, has_shape;
} reader;

static cup_status fail(const reader *r, const char *words)
{
    return cup__fail(r->error, CUP_FORMAT, "%s is no .npy file that can be read: %s", r->path,
                     words);
}

static void skip(reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n'))
        r->at++;
}

/* Takes a character, and the spaces around it, when it is there. */
static bool take(reader *r, char wanted)
{
    skip(r);
    if (r->at == r->end || *r->at != wanted)
        return false;
    r->at++;
    skip(r);
    return true;
}

static cup_status read_text(reader *r, char *out, size_t size)
{
    size_t used = 0;
    skip(r);
    if (r->at == r->end || (*r->at != '\'' && *r->at != '"'))
        return fail(r, "its header lacks a text in quotes where one belongs; an array of several "
                       "fields is not read");
    char quote = *r->at++;
    while (r->at < r->end && *r->at != quote && used + 1 < size)
        out[used++] = *r->at++;
    out[used] = 0;
    if (r->at == r->end || *r->at++ != quote)
        return fail(r, "a text in its header is too long");
    return CUP_OK;
}

static cup_status read_type(reader *r, cup__npy *out)
{
    char name[16];
    CUP_TRY(read_text(r, name, sizeof name));
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(types[i].name, name)) {
            out->dtype = types[i].dtype;
            return CUP_OK;
        }
    for (const char *c = name; *c; c++) /* which goes into a sentence */
        if (*c < '!' || *c > '~')
            return fail(r, "its dtype has strange characters");
    return cup__fail(r->error, CUP_DTYPE,
                     "%s has elements of NumPy's type %s, which is not read; convert them in NumPy "
                     "with astype, to float32 or int64 for example",
                     r->path, name);
}

static cup_status read_order(reader *r, bool *columns)
{
    skip(r);
    size_t left = (size_t)(r->end - r->at);
    *columns = left >= 4 && !memcmp(r->at, "True", 4);
    if (!*columns && !(left >= 5 && !memcmp(r->at, "False", 5)))
        return fail(r, "its fortran_order is neither True nor False");
    r->at += *columns ? 4 : 5;
    return CUP_OK;
}

static cup_status read_size(reader *r, int64_t *out)
{
    const char *begin = r->at;
    for (*out = 0; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++)
        if (!cup__multiply_i64(*out, 10, out) ||
            __builtin_add_overflow(*out, *r->at - '0', out))
            return fail(r, "a size in its shape is too large");
    return r->at > begin ? CUP_OK : fail(r, "its shape is no list of whole numbers");
}

static cup_status read_shape(reader *r, cup__npy *out)
{
    if (!take(r, '('))
        return fail(r, "its shape is no list of whole numbers");
    while (!take(r, ')')) {
        if (out->ndim == CUP_MAX_DIMS)
            return fail(r, "it has more than 8 dimensions");
        CUP_TRY(read_size(r, &out->shape[out->ndim++]));
        if (!take(r, ',') && (r->at == r->end || *r->at != ')'))
            return fail(r, "its shape is no list of whole numbers");
    }
    return CUP_OK;
}

static cup_status read_entry(reader *r, cup__npy *out, bool *columns)
{
    char key[16];
    CUP_TRY(read_text(r, key, sizeof key));
    bool *has = !strcmp(key, "descr")           ? &r->has_type
                : !strcmp(key, "fortran_order") ? &r->has_order
                : !strcmp(key, "shape")         ? &r->has_shape
                                                : NULL;
    if (!has || *has || !take(r, ':'))
        return fail(r, "its header has an entry that does not belong there");
    *has = true;
    return has == &r->has_type    ? read_type(r, out)
           : has == &r->has_order ? read_order(r, columns)
                                  : read_shape(r, out);
}

static cup_status read_header(reader *r, cup__npy *out)
{
    bool columns = false;
    if (!take(r, '{'))
        return fail(r, "its header is no dictionary");
    while (!take(r, '}')) {
        CUP_TRY(read_entry(r, out, &columns));
        if (!take(r, ',') && (r->at == r->end || *r->at != '}'))
            return fail(r, "its header is no dictionary");
    }
    if (r->at != r->end)
        return fail(r, "something follows the dictionary in its header");
    if (!r->has_type || !r->has_order || !r->has_shape)
        return fail(r, "its header lacks descr, fortran_order or shape");
    if (columns && out->ndim > 1)
        return cup__fail(r->error, CUP_UNSUPPORTED,
                         "%s lies column by column; save numpy.ascontiguousarray of it", r->path);
    return CUP_OK;
}

static cup_status check_bytes(const reader *r, cup__npy *out)
{
    cup__shape shape = {.dtype = out->dtype, .ndim = out->ndim};
    int64_t count;
    memcpy(shape.size, out->shape, sizeof shape.size);
    CUP_TRY(cup__shape_check(r->error, &shape, &count));
    out->bytes = (uint64_t)(count * cup_dtype_size(out->dtype));
    if (out->bytes == out->file.size - out->begin)
        return CUP_OK;
    return cup__fail(r->error, CUP_FORMAT,
                     "%s has %llu bytes of elements, and its shape needs %llu; it is cut off or "
                     "holds more than one array",
                     r->path, (unsigned long long)(out->file.size - out->begin),
                     (unsigned long long)out->bytes);
}

static cup_status read_all(cup__error *error, cup__npy *out)
{
    unsigned char head[12] = {0};
    reader r = {.error = error, .path = out->file.path};
    size_t most = out->file.size < sizeof head ? (size_t)out->file.size : sizeof head;
    CUP_TRY(cup__file_read_at(error, &out->file, 0, head, most));
    if (most < 10 || memcmp(head, MAGIC, 6))
        return fail(&r, "it does not begin as one; numpy.save writes them");
    if (head[6] < 1 || head[6] > 3 || head[7])
        return fail(&r, "it is of a format after 3.0");
    uint64_t length = head[8] | (uint64_t)head[9] << 8;
    if (head[6] > 1)
        length |= (uint64_t)head[10] << 16 | (uint64_t)head[11] << 24;
    uint64_t before = head[6] > 1 ? 12 : 10;
    if (length > HEADER_MOST || before + length > out->file.size)
        return fail(&r, "its header is cut off or too long");
    out->begin = before + length;
    char *text = cup__malloc((size_t)length);
    if (!text)
        return cup__fail(error, CUP_MEMORY, "out of host memory for the header of %s", r.path);
    r.at = text;
    r.end = text + length;
    cup_status status = cup__file_read_at(error, &out->file, before, text, (size_t)length);
    if (status == CUP_OK)
        status = read_header(&r, out);
    cup__free(text);
    return status == CUP_OK ? check_bytes(&r, out) : status;
}

cup_status cup__npy_take(cup__error *error, cup__file *file, cup__npy *out)
{
    *out = (cup__npy){.file = *file};
    cup_status status = read_all(error, out);
    if (status != CUP_OK)
        cup__npy_close(out);
    return status;
}

cup_status cup__npy_open(cup__error *error, const char *path, cup__npy *out)
{
    cup__file file;
    *out = (cup__npy){0};
    CUP_TRY(cup__file_open(error, path, &file));
    return cup__npy_take(error, &file, out);
}

void cup__npy_close(cup__npy *npy)
{
    cup__file_close(&npy->file);
    *npy = (cup__npy){0};
}

cup_tensor *cup_npy_load(cup_context *c, const char *path)
{
    cup__npy npy;
    CUP__DEBUG_CALL(c);
    if (!c || c->error.status != CUP_OK)
        return NULL;
    if (!path) {
        cup__fail(&c->error, CUP_ARGUMENT, "the path of a .npy file is NULL; name one");
        return NULL;
    }
    if (cup__npy_open(&c->error, path, &npy) != CUP_OK)
        return NULL;
    cup__shape shape = {.dtype = npy.dtype, .ndim = npy.ndim};
    memcpy(shape.size, npy.shape, sizeof shape.size);
    cup_tensor *t = cup__tensor_make(c, &shape, "npy");
    char *bytes = t ? cup__malloc((size_t)npy.bytes) : NULL;
    if (t && !bytes)
        cup__fail(&c->error, CUP_MEMORY, "out of host memory for %s", path);
    if (bytes && cup__file_read_at(&c->error, &npy.file, npy.begin, bytes, (size_t)npy.bytes) ==
                     CUP_OK)
        cup_tensor_write(t, bytes, (size_t)npy.bytes);
    cup__free(bytes);
    cup__npy_close(&npy);
    return c->error.status == CUP_OK ? t : NULL;
}
