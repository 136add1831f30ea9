#include "cli/common/text.h"

#include <stdlib.h>

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
