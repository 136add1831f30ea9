#include "cli/common/text.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cupola/text.h"

bool text_open(cli_text *text)
{
    *text = (cli_text){0};
    text->to = open_memstream(&text->bytes, &text->length);
    return text->to;
}

bool text_close(cli_text *text)
{
    if (!text->to)
        return false;
    bool whole = !ferror(text->to);
    if (fclose(text->to))
        whole = false;
    text->to = NULL;
    return whole && text->bytes;
}

void text_free(cli_text *text)
{
    if (text->to)
        fclose(text->to);
    free(text->bytes);
    *text = (cli_text){0};
}

void text_add_markup(FILE *to, const char *words)
{
    for (size_t left = strlen(words); left;) {
        uint32_t code;
        int bytes = cup_text_character(words, left, &code);
        bool allowed = bytes > 0 && code >= 0x20 && code != 0xfffe && code != 0xffff;
        if (!allowed)
            fputs("\xef\xbf\xbd", to);
        else if (code < 0x80 && strchr("<>&\"'", (int)code))
            fprintf(to, "&#%u;", (unsigned)code);
        else
            fwrite(words, 1, (size_t)bytes, to);
        bytes = bytes > 0 ? bytes : 1;
        words += bytes;
        left -= (size_t)bytes;
    }
}
