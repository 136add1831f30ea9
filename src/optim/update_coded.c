/* Updates whose states are codes of 8 bits: what is read of them and written back, a piece of a
 * parameter at a time. */
#include "base/philox.h"
#include "optim/codes.h"
#include "optim/update.h"

cup__shape cup__update_state_shape(const cup__row *row, const cup__shape *parameter)
{
    cup__shape shape = *parameter;
    shape.dtype = shape.dtype == CUP_F64 ? CUP_F64 : CUP_F32;
    if (!row->op->update->coded)
        return shape;
    int64_t count = 1;
    for (int i = 0; i < shape.ndim; i++)
        count *= shape.size[i];
    return (cup__shape){CUP_U8, 2, {(count + CUP__CODES - 1) / CUP__CODES, CUP__CODES_ROW}};
}

static uint8_t *row_at(const cup_tensor *state, int64_t offset)
{
    return (uint8_t *)state->data + offset / CUP__CODES * CUP__CODES_ROW;
}

void cup__codes_read(const cup_tensor *state, bool is_signed, int64_t offset, int64_t count,
                     float *out)
{
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *row = row_at(state, offset + i);
        out[i] = cup__code_value(row[(offset + i) % CUP__CODES], row[CUP__CODES], is_signed);
    }
}

/* Element i takes half i % 2 of word i / 2 % 4 of a block for eight of a state: those of the
 * states are beside those by which parameters are rounded. */
static void write_row(const cup__call *call, int record, bool is_signed, int64_t offset,
                      int64_t count, const float *values, uint8_t *row)
{
    uint64_t from = (uint64_t)record << 40 | (uint64_t)(is_signed ? 1 : 2) << 38;
    uint32_t most = 0;
    for (int64_t i = 0; i < count; i++)
        most = cup__codes_bits(values[i]) > most ? cup__codes_bits(values[i]) : most;
    int top = cup__codes_top(most);
    memset(row, 0, CUP__CODES_ROW);
    row[CUP__CODES] = (uint8_t)top;
    cup__philox_words words = {{0}};
    for (int64_t i = 0; i < count; i++) {
        if (i % 8 == 0)
            words = cup__philox_block(call->random, call->sequence,
                                      from | (uint64_t)(offset + i) / 8);
        uint32_t random = words.at[i / 2 % 4] >> (i % 2 * 16) & 0xffff;
        row[i] = cup__code_of(values[i], top, is_signed, random);
    }
}

void cup__codes_write(const cup__call *call, int record, bool is_signed, int64_t offset,
                      int64_t count, const float *values)
{
    cup_tensor *state = cup__update_record(call, record)[is_signed ? CUP__FIRST : CUP__SECOND];
    for (int64_t at = 0; at < count; at += CUP__CODES)
        write_row(call, record, is_signed, offset + at,
                  count - at < CUP__CODES ? count - at : CUP__CODES, values + at,
                  row_at(state, offset + at));
}
