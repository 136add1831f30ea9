/* Tensors by DLPack, on the host and on the fake GPU. */
#include "cupola/dlpack.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/memory.h"
#include "cuda/support.h"
#include "cupola/cupola.h"
#include "test.h"

_Static_assert(sizeof(DLDataType) == 4 && sizeof(DLDevice) == 8, "");
_Static_assert(offsetof(DLTensor, shape) == 24 && offsetof(DLTensor, byte_offset) == 40, "");
_Static_assert(offsetof(DLManagedTensorVersioned, flags) == 24, "");
_Static_assert(offsetof(DLManagedTensorVersioned, dl_tensor) == 32, "");
_Static_assert(sizeof(DLManagedTensorVersioned) == 80, "");

static int deleted;

static void count_delete(DLManagedTensorVersioned *self)
{
    deleted += self->manager_ctx ? *(int *)self->manager_ctx : 1;
}

static cup_context *cpu(void)
{
    deleted = 0;
    return cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
}

/* [2,3] f32, the numbers 0 to 5 behind 8 bytes of others. */
static float memory[] = {-1, -1, 0, 1, 2, 3, 4, 5};
static int64_t shape[] = {2, 3};

static DLManagedTensorVersioned plain(void)
{
    return (DLManagedTensorVersioned){
        .version = {1, 0},
        .deleter = count_delete,
        .dl_tensor = {.data = memory, .device = {kDLCPU, 0}, .ndim = 2,
                      .dtype = {kDLFloat, 32, 1}, .shape = shape, .byte_offset = 8}};
}

static void expect_refused(cup_context *c, DLManagedTensorVersioned managed, cup_status status,
                           const char *words)
{
    deleted = 0;
    EXPECT(!cup_dlpack_import(c, &managed));
    EXPECT_INT(deleted, 1);
    EXPECT_INT(cup_error(c), status);
    EXPECT_CONTAINS(cup_error_text(c), words);
    cup_error_clear(c);
}

TEST(dlpack_imports_and_deletes_once)
{
    float to[6];
    cup_context *c = cpu();
    DLManagedTensorVersioned managed = plain();
    cup_scope_open(c);
    cup_tensor *x = cup_dlpack_import(c, &managed);
    EXPECT(cup_tensor_data(x) == memory + 2);
    cup_tensor *view = cup_keep(cup_permute(c, x, (int64_t[]){1, 0}, 2));
    cup_scope_close(c);
    EXPECT_INT(deleted, 0);
    EXPECT_INT(cup_tensor_read(view, to, sizeof to), CUP_OK);
    EXPECT(to[1] == 3 && to[4] == 2);
    cup_tensor_free(view);
    EXPECT_INT(deleted, 1);
    managed = plain();
    managed.deleter = NULL;
    managed.version.minor = 9;
    managed.dl_tensor.strides = (int64_t[]){1, 2};
    managed.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
    x = cup_dlpack_import(c, &managed);
    EXPECT_INT(cup_tensor_stride(x, 1), 2);
    EXPECT_INT(cup_tensor_write(x, to, sizeof to), CUP_STATE);
    cup_error_clear(c);
    cup_context_free(c);
}

TEST(dlpack_refuses_and_deletes)
{
    cup_context *c = cpu();
    DLManagedTensorVersioned m = plain();
    m.version.major = 2;
    m.dl_tensor.shape = (int64_t *)1; /* which is not to be read */
    expect_refused(c, m, CUP_UNSUPPORTED, "of DLPack 2.0");
    m = plain();
    m.dl_tensor.device = (DLDevice){kDLCUDA, 0};
    expect_refused(c, m, CUP_ARGUMENT, "not in the host's memory");
    m = plain();
    m.dl_tensor.dtype.lanes = 2;
    expect_refused(c, m, CUP_DTYPE, "2 lanes");
    m.dl_tensor.dtype = (DLDataType){kDLComplex, 64, 1};
    expect_refused(c, m, CUP_DTYPE, "of no dtype");
    m = plain();
    m.dl_tensor.byte_offset = 3;
    expect_refused(c, m, CUP_ARGUMENT, "multiple");
    m.dl_tensor.byte_offset = UINT64_MAX - 7;
    expect_refused(c, m, CUP_ARGUMENT, "byte_offset");
    m = plain();
    m.dl_tensor.data = NULL;
    expect_refused(c, m, CUP_ARGUMENT, "NULL");
    m = plain();
    m.dl_tensor.shape = NULL;
    expect_refused(c, m, CUP_ARGUMENT, "its shape is NULL");
    m = plain();
    m.dl_tensor.ndim = 9;
    expect_refused(c, m, CUP_SHAPE, "9 dimensions");
    m = plain();
    m.dl_tensor.strides = (int64_t[]){-3, 1};
    expect_refused(c, m, CUP_ARGUMENT, "negative");
    for (long n = 1; n < 4; n++) {
        cup_context *fresh = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
        m = plain();
        deleted = 0;
        cup__memory_fail_at(n, false);
        EXPECT(!cup_dlpack_import(fresh, &m));
        cup__memory_fail_at(0, false);
        EXPECT_INT(deleted, 1);
        cup_context_free(fresh);
    }
    cup_context_free(c);
}

TEST(dlpack_goes_there_and_back_in_every_dtype)
{
    static const struct {
        cup_dtype dtype;
        int code, bits;
    } all[] = {{CUP_F32, 2, 32}, {CUP_F64, 2, 64},    {CUP_F16, 2, 16},    {CUP_BF16, 4, 16},
               {CUP_I64, 0, 64}, {CUP_I32, 0, 32},    {CUP_U8, 1, 8},      {CUP_BOOL, 6, 8},
               {CUP_I8, 0, 8},   {CUP_F8E4M3, 10, 8}, {CUP_F8E5M2, 12, 8}};
    cup_context *c = cpu(), *other = cpu();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        cup_tensor *x = cup_tensor_new(c, all[i].dtype, 2, (int64_t[]){2, 3});
        cup_tensor *turned = cup_permute(c, x, (int64_t[]){1, 0}, 2);
        DLManagedTensorVersioned *m = cup_dlpack_export(turned, -1, false);
        const DLTensor *t = &m->dl_tensor;
        EXPECT_INT(t->dtype.code, all[i].code);
        EXPECT_INT(t->dtype.bits, all[i].bits);
        EXPECT(t->dtype.lanes == 1 && t->device.device_type == kDLCPU && !t->device.device_id);
        EXPECT(t->ndim == 2 && t->shape[0] == 3 && t->strides[0] == 1 && t->strides[1] == 3);
        EXPECT(m->version.major == 1 && m->version.minor >= 2 && !m->flags);
        cup_tensor *back = cup_dlpack_import(other, m);
        EXPECT_INT(cup_tensor_dtype(back), all[i].dtype);
        EXPECT(cup_tensor_data(back) == cup_tensor_data(x));
    }
    cup_context_free(c); /* what was handed out lives on */
    cup_context_free(other);
}

TEST(dlpack_says_read_only_and_copied)
{
    cup_context *c = cpu();
    cup_tensor *w = cup_require_grad(cup_full(c, CUP_BF16, 1, (int64_t[]){2}, 3));
    cup_tensor *y = cup_mul(c, w, w);
    DLManagedTensorVersioned *m = cup_dlpack_export(y, -1, false);
    EXPECT_INT(m->flags, DLPACK_FLAG_BITMASK_READ_ONLY);
    m->deleter(m);
    m = cup_dlpack_export(y, -1, true);
    EXPECT_INT(m->flags, DLPACK_FLAG_BITMASK_IS_COPIED);
    EXPECT(m->dl_tensor.data != cup_tensor_data(y));
    m->deleter(m);
    m = cup_dlpack_export(cup_tensor_new(c, CUP_F32, 1, (int64_t[]){0}), 0, false);
    EXPECT(!m->dl_tensor.data && m->dl_tensor.strides);
    m->deleter(m);
    EXPECT_INT(cup_dlpack_stream(c), -1);
    for (long n = 1; n < 3; n++) {
        cup__memory_fail_at(n, false);
        EXPECT(!cup_dlpack_export(w, -1, false));
        cup__memory_fail_at(0, false);
        EXPECT_INT(cup_error(c), CUP_MEMORY);
        cup_error_clear(c);
    }
    cup_context_free(c);
}

TEST(dlpack_on_the_fake_gpu)
{
    float to[2];
    CUstream stream;
    fake_begin();
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    cup_context *other = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    cup_tensor *x = cup_tensor_from(c, CUP_F32, 1, (int64_t[]){2}, (float[]){1, 2});
    EXPECT(!cup_dlpack_export(x, 0, false));
    EXPECT_CONTAINS(cup_error_text(c), "the stream 0");
    cup_error_clear(c);
    cup__driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    long waits = fake_calls("cuStreamWaitEvent");
    DLManagedTensorVersioned *m = cup_dlpack_export(x, (int64_t)(uintptr_t)stream, false);
    EXPECT_INT(fake_calls("cuStreamWaitEvent"), waits + 1);
    EXPECT(m->dl_tensor.device.device_type == kDLCUDA && m->dl_tensor.device.device_id == 0);
    m->deleter(m);
    m = cup_dlpack_export(x, cup_dlpack_stream(other), false);
    cup_tensor *y = cup_dlpack_import(other, m);
    EXPECT_INT(cup_tensor_read(y, to, sizeof to), CUP_OK);
    EXPECT(to[0] == 1 && to[1] == 2);
    DLManagedTensorVersioned wrong = plain();
    expect_refused(other, wrong, CUP_ARGUMENT, "on device 0 of kind 1");
    wrong.dl_tensor.device = (DLDevice){kDLCUDA, 1};
    expect_refused(other, wrong, CUP_ARGUMENT, "on device 1 of kind 2");
    wrong.dl_tensor.device = (DLDevice){kDLCUDA, 0};
    expect_refused(other, wrong, CUP_ARGUMENT, "memory that CUDA does not know");
    cup__driver.cuStreamDestroy(stream);
    cup_context_free(c);
    cup_context_free(other);
    fake_expect_nothing_left();
}
