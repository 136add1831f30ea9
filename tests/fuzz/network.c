/* Any description of a network is refused with a sentence, or its lines are what they may be. */
#include "fuzz.h"

#include "nn/network.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static cup_context *c;
    cup__network_line *lines;
    int count;
    if (!c)
        c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    char *text = calloc(size + 1, 1);
    memcpy(text, data, size);
    cup_status status = cup__network_read(c, text, &lines, &count);
    MUST(status == CUP_OK || cup_error_text(c)[0]);
    for (int i = 0; i < count && status == CUP_OK; i++) {
        const cup__network_line *l = &lines[i];
        MUST(cup__network_word(l->kind)[0] && l->number > 0);
        MUST(l->count >= -2 && l->count <= 1 << 30 && l->kernel >= 0);
        MUST(l->padding >= (l->kind == CUP__STEP_CONV ? -2 : -1));
        MUST(l->part >= 0 && l->part < 1e30 && l->dropout >= 0);
    }
    cup_error_clear(c);
    free(lines);
    free(text);
    return 0;
}
