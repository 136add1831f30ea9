/* The sources in the library are those of the tree. */
#include "cuda/sources.h"

#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "test.h"

TEST(sources_are_those_of_the_tree)
{
    int count = 0;
    for (const cup__source *s = cup__sources(); s->name; s++, count++) {
        char *text;
        size_t size;
        EXPECT_INT(cup__file_read(NULL, s->path, 1 << 24, &text, &size), CUP_OK);
        if (size != s->size || memcmp(text, s->text, size + 1))
            test_fail(__FILE__, __LINE__, "%s is another text than %s", s->name, s->path);
        cup__free(text);
    }
    EXPECT(count > 80);
}
