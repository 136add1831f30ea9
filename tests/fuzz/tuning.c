/* A file of tuning records: what is read is written and read again; ways are taken or refused. */
#include <string.h>

#include "fuzz.h"

#include "dispatch/attributes.h"
#include "dispatch/tuned.h"
#include "dispatch/tuning.h"

static cup_status parse(const char *text, size_t size, cup__tuning *to)
{
    return cup__tuning_parse(NULL, "fuzz", text, size, to);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cup__tuning first = {0}, second = {0};
    cup__text text = {0};
    /* A bad line costs itself alone. */
    cup_status whole = parse((const char *)data, size, &first);
    MUST(whole == CUP_OK || whole == CUP_FORMAT);
    if (whole == CUP_OK || first.count) {
        cup__tuning_write(&first, &text);
        MUST(!text.failed && parse(text.bytes, text.length, &second) == CUP_OK);
        MUST(second.count == first.count);
    }
    for (size_t i = 0; i < first.count; i++) {
        cup__way way, again;
        cup__text words = {0};
        if (!cup__way_parse(cup__rows[CUP__OP_linear].op, first.lines[i].way, &way))
            continue;
        cup__way_text(&way, &words);
        MUST(cup__way_parse(cup__rows[CUP__OP_linear].op, words.bytes, &again) &&
             !memcmp(&way, &again, sizeof way));
        cup__text_free(&words);
    }
    cup__tuning_free(&first);
    cup__tuning_free(&second);
    cup__text_free(&text);
    return 0;
}
